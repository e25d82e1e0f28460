//! THE SCHEDULE: the periodic jobs of a node.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    db::Db,
    delivery::Backplane,
    error::Result,
    features::{
        accounts::{self, Codes},
        agents, group_keys, messages, passkeys, relations,
    },
    inbox,
    jobs::Periodic,
    limits::table::Overrides,
    mail::Mailer,
    random::Random,
};

/// Days that inbox entries are kept.
const INBOX_RETENTION_DAYS: i32 = 30;

/// (job, name, seconds between two runs, whether only one node at a time runs it).
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

/// What the jobs work with.
#[derive(Clone)]
pub struct Schedule {
    pub db: Db,
    pub budgets: Overrides,
    pub codes: Codes,
    pub mailer: Mailer,
    /// Notified when a mail has been put into the outbox.
    pub mail_notify: Arc<Notify>,
    /// Notified when an account has been deleted.
    pub erasure_notify: Arc<Notify>,
    pub random: Random,
    pub backplane: Backplane,
}

impl Schedule {
    /// Spawns every job; they end with `stop`.
    pub fn spawn(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        for (job, name, seconds, exclusive) in SCHEDULE {
            let periodic = Periodic {
                name,
                every: Duration::from_secs(*seconds),
                exclusive: *exclusive,
                wake: self.wake(*job),
            };
            let (db, schedule) = (self.db.clone(), self.clone());
            let work = move || schedule.clone().work(*job);
            tasks.spawn(periodic.repeat(db, stop.clone(), work));
        }
    }

    fn wake(&self, job: Job) -> Option<Arc<Notify>> {
        match job {
            Job::Mail => Some(self.mail_notify.clone()),
            Job::EraseAccounts => Some(self.erasure_notify.clone()),
            _ => None,
        }
    }

    async fn work(self, job: Job) -> Result<()> {
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
