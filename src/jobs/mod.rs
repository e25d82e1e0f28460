//! THE SCHEDULE: what runs by itself. Jobs that clean up run on one node at a time, in small batches; whoever holds
//! the advisory lock does the work and the others skip their turn.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    backplane::Backplane,
    db::Db,
    error::Result,
    features::{
        accounts::{self, Codes},
        agents, group_keys, inbox, messages, passkeys, relations,
    },
    limits::table::Overrides,
    mail::Mailer,
    metrics,
    random::Random,
};

/// Days that inbox entries are kept.
const INBOX_RETENTION_DAYS: i32 = 30;

/// (name, every so many seconds, on one node at a time).
const SCHEDULE: &[(Job, &str, u64, bool)] = &[
    (Job::Mail, "mail", 1, false),
    (Job::EraseAccounts, "erase_accounts", 5, false),
    (Job::LeaveDeleted, "leave_deleted_agents", 1, false),
    (Job::AskForKeys, "ask_for_other_keys", 1, false),
    (Job::RetireCredentials, "retire_agent_credentials", 5, false),
    (Job::ForgetCodes, "forget_codes", 600, true),
    (Job::ForgetChallenges, "forget_challenges", 60, true),
    (Job::ForgetKeys, "forget_idempotency_keys", 300, true),
    (Job::ExpireInboxes, "expire_inboxes", 600, true),
    (Job::PurgeRelations, "purge_relations", 600, true),
];

#[derive(Clone, Copy)]
enum Job {
    Mail,
    EraseAccounts,
    LeaveDeleted,
    AskForKeys,
    RetireCredentials,
    ForgetCodes,
    ForgetChallenges,
    ForgetKeys,
    ExpireInboxes,
    PurgeRelations,
}

/// What jobs work with.
#[derive(Clone)]
pub struct Jobs {
    pub db: Db,
    pub budgets: Overrides,
    pub codes: Codes,
    pub mailer: Mailer,
    /// Rung when a mail has been put into the outbox.
    pub mail_notify: Arc<Notify>,
    /// Rung when an account has been deleted.
    pub erasure_notify: Arc<Notify>,
    pub random: Random,
    pub backplane: Backplane,
}

impl Jobs {
    /// Spawns every job; they end with `stop`.
    pub fn spawn(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        for (job, name, every, alone) in SCHEDULE {
            let again = self.clone().repeat(
                *job,
                name,
                Duration::from_secs(*every),
                *alone,
                stop.clone(),
            );
            tasks.spawn(again);
        }
    }

    async fn repeat(
        self,
        job: Job,
        name: &'static str,
        every: Duration,
        alone: bool,
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.mail_notify.notified(), if matches!(job, Job::Mail) => {}
                () = self.erasure_notify.notified(), if matches!(job, Job::EraseAccounts) => {}
                () = stop.cancelled() => return,
            }
            let started = std::time::Instant::now();
            if let Err(error) = self.turn(job, name, alone).await {
                error.log();
            }
            metrics::job(name, started.elapsed());
        }
    }

    async fn turn(&self, job: Job, name: &str, alone: bool) -> Result<()> {
        if !alone {
            return self.work(job).await;
        }
        let client = self.db.read().await?;
        let lock = client
            .prepare_cached(
                "-- jobs.lock
            select pg_try_advisory_lock(hashtext($1)) as is_mine",
            )
            .await?;
        let unlock = client
            .prepare_cached(
                "-- jobs.unlock
            select pg_advisory_unlock(hashtext($1))",
            )
            .await?;
        // Session-level, so it must be given back on the same connection; a connection that dies gives it back itself.
        let mine: bool = client.query_one(&lock, &[&name]).await?.get("is_mine");
        if !mine {
            return Ok(());
        }
        let outcome = self.work(job).await;
        client.query_one(&unlock, &[&name]).await?;
        outcome
    }

    async fn work(&self, job: Job) -> Result<()> {
        match job {
            Job::Mail => accounts::jobs::send_mail(&self.db, &self.codes, &self.mailer).await,
            Job::EraseAccounts => {
                accounts::jobs::erase(&self.db, &self.random, &self.backplane).await
            }
            Job::LeaveDeleted => agents::leave(&self.db, &self.random, &self.backplane).await,
            Job::AskForKeys => {
                group_keys::ask_for_others(&self.db, &self.random, &self.backplane).await
            }
            Job::RetireCredentials => agents::retire(&self.db, &self.random, &self.backplane).await,
            Job::ForgetCodes => accounts::jobs::forget(&self.db, &self.budgets).await,
            Job::ForgetChallenges => {
                while passkeys::forget_challenges(&self.db).await? {}
                Ok(())
            }
            Job::ForgetKeys => {
                while messages::forget_keys(&self.db).await? {}
                Ok(())
            }
            Job::ExpireInboxes => inbox::expire(&self.db, INBOX_RETENTION_DAYS).await,
            Job::PurgeRelations => {
                while relations::purge(&self.db).await? {}
                Ok(())
            }
        }
    }
}
