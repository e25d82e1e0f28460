//! THE SCHEDULE: the code that performs each kind of job, and the upkeep that every node requests
//! at intervals. Upkeep goes through the queue under a unique key, so one node does it at a time.
//! Another node takes over when that node dies.

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    error::Result,
    features::{
        accounts::{
            self, Codes,
            jobs::{CodeMail, LoginNotice},
        },
        agents, erasure, group_keys, messages, passkeys, relations,
    },
    inbox,
    jobs::{
        Job, JobError, Perform, Upkeep, Worker,
        queue::{self, NewJob},
    },
    limits::table::Overrides,
    mail::Mailer,
    work::UnitOfWork,
};

/// The number of days that inbox entries are kept.
const INBOX_RETENTION_DAYS: i32 = 30;

/// The dependencies of jobs.
#[derive(Clone)]
pub struct Schedule {
    /// Uses connections that requests cannot exhaust.
    pub work: UnitOfWork,
    /// The operator's limits. A guard is kept for the window of its limit.
    pub budgets: Overrides,
    /// Derives mailed codes.
    pub codes: Codes,
    /// Sends mail to the mail server.
    pub mailer: Mailer,
}

impl Schedule {
    /// Spawns the worker and the upkeep's timers. They end with `stop`.
    pub fn spawn(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        let (db, wake) = (self.work.db().clone(), self.work.job_wakeup());
        tasks.spawn(Worker::new(db, wake, self.clone()).run(stop.clone()));
        for upkeep in Upkeep::ALL {
            let (clock, until) = (Box::pin(self.clone().repeat(*upkeep)), stop.clone());
            tasks.spawn(async move { until.run_until_cancelled(clock).await });
        }
    }

    /// Requests one kind of upkeep repeatedly. The first request comes after a random delay, so
    /// that nodes and kinds spread out.
    async fn repeat(self, upkeep: Upkeep) {
        let every = Duration::from_secs(upkeep.row().1);
        tokio::time::sleep(every.mul_f64(self.work.random().fraction())).await;
        loop {
            if let Err(error) = self.ask_for(upkeep).await {
                error.log();
            }
            tokio::time::sleep(every).await;
        }
    }

    async fn ask_for(&self, upkeep: Upkeep) -> Result<()> {
        let new = NewJob {
            job: upkeep.job(),
            delay: Duration::ZERO,
        };
        queue::enqueue(&self.work.db().read().await?, &[new]).await?;
        self.work.job_wakeup().notify_one();
        Ok(())
    }

    async fn upkeep(&self, upkeep: Upkeep) -> Result<()> {
        let db = self.work.db();
        match upkeep {
            Upkeep::RetireCredentials => agents::retire(&self.work).await,
            Upkeep::ForgetCodes => accounts::jobs::forget(db, &self.budgets).await,
            Upkeep::ForgetJobs => queue::forget(db).await,
            Upkeep::ForgetChallenges => {
                while passkeys::forget_challenges(db).await? {}
                Ok(())
            }
            Upkeep::ForgetKeys => {
                while messages::forget_keys(db).await? {}
                Ok(())
            }
            Upkeep::ExpireInboxes => inbox::expire(db, INBOX_RETENTION_DAYS).await,
            Upkeep::PurgeRelations => {
                while relations::purge(db).await? {}
                Ok(())
            }
        }
    }
}

impl Perform for Schedule {
    async fn perform(&self, job: Job) -> Result<(), JobError> {
        match job {
            Job::Mail {
                recipient,
                scene,
                nonce,
            } => {
                let mail = CodeMail {
                    recipient,
                    scene,
                    nonce,
                };
                accounts::jobs::mail_code(&self.mailer, &self.codes, &mail).await
            }
            Job::LoginNotice {
                user,
                device_name,
                at,
            } => {
                let notice = LoginNotice {
                    user,
                    device_name,
                    at,
                };
                accounts::jobs::mail_notice(self.work.db(), &self.mailer, &notice).await
            }
            Job::ReplaceKeys { user, device_id } => {
                Ok(group_keys::replace_held(&self.work, user, &device_id).await?)
            }
            Job::EraseAccount { user } => Ok(erasure::account(&self.work, user).await?),
            Job::EraseAgent { agent, owner } => Ok(erasure::agent(&self.work, agent, owner).await?),
            Job::Upkeep(name) => {
                let upkeep =
                    Upkeep::from_name(&name).ok_or_else(|| JobError::Fail(queue::unreadable()))?;
                Ok(self.upkeep(upkeep).await?)
            }
        }
    }
}
