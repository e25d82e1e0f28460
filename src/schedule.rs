//! THE SCHEDULE: the performer of each kind of job, and the upkeep that every node requests at
//! intervals. Upkeep goes through the queue under a unique key. So only one node performs it at a
//! time, and another takes over when that node dies. Upkeep that removes many rows is paced, so
//! that requests go on beside it.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    db::batches::paced,
    delivery::reconcile,
    error::Result,
    features::{
        access_log,
        accounts::{
            self, Addressee, Codes, SecurityChange,
            jobs::{CodeMail, LoginNotice},
        },
        agents, announcements, approvals, conversations, erasure, files, grants, group_keys,
        messages, passkeys,
        push::{self, EndpointSeal},
        retention::purge_relations,
        shares, tool_calls,
        webhooks::{self, RESEAL_INTERVAL, SecretSeal},
    },
    inbox,
    jobs::{
        ConsentEnd, Job, JobError, Perform, Upkeep, Worker,
        queue::{self, NewJob},
        retention,
    },
    limits::table::Overrides,
    mail::Mailer,
    objects::Objects,
    supervisor,
    work::UnitOfWork,
};

/// The number of days that inbox entries are kept.
const INBOX_RETENTION_DAYS: i32 = 30;

/// The parts that jobs work with.
#[derive(Clone)]
pub struct Schedule {
    /// The unit of work over the jobs' own connections, which requests cannot exhaust.
    pub work: UnitOfWork,
    /// The unit of work for deadlines, which jobs cannot hold up.
    pub deadlines: UnitOfWork,
    /// The operator's budgets. A guard is kept for the window of its limit.
    pub budgets: Overrides,
    /// The key that mailed codes are derived with.
    pub codes: Codes,
    /// The mail client.
    pub mailer: Mailer,
    /// The store whose objects end.
    pub objects: Objects,
    /// Bytes of all files from which on the operator is told.
    pub files_bytes_alert: u64,
    /// Whether the digests of the access log go to the store as well.
    pub publishes_digests: bool,
    /// Factor on the frequency of periodic jobs.
    pub upkeep_speed: u32,
    /// The keys that webhook secrets are sealed under.
    pub webhook_seal: SecretSeal,
    /// The keys that endpoints of pushes are sealed under.
    pub push_seal: EndpointSeal,
    /// Notified after the sweep of pushes.
    pub wake_pushes: Arc<Notify>,
    /// Notified after the sweep of webhooks.
    pub wake_webhooks: Arc<Notify>,
}

impl Schedule {
    /// Spawns the worker and the timers; they end with `stop`.
    pub fn start(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        let (db, wake) = (self.work.db().clone(), self.work.job_wakeup());
        let (worker, until) = (Worker::new(db, wake, self.clone()), stop.clone());
        supervisor::spawn(tasks, "jobs", move || worker.clone().run(until.clone()));
        let schedule = self.clone();
        supervisor::spawn_until(tasks, stop, "deadlines", move || {
            let schedule = schedule.clone();
            async move {
                tokio::join!(schedule.expire_tool_calls(), schedule.expire_approvals());
            }
        });
        let schedule = self.clone();
        supervisor::spawn_until(tasks, stop, "reseal", move || {
            let schedule = schedule.clone();
            async move {
                tokio::join!(schedule.reseal_webhooks(), schedule.reseal_pushes());
            }
        });
        let schedule = self.clone();
        supervisor::spawn_until(tasks, stop, "schedule", move || {
            schedule.clone().request_upkeep()
        });
    }

    /// Requests each kind of upkeep at its interval. The first run comes at a random time, so that
    /// nodes and kinds do not run in step.
    async fn request_upkeep(self) {
        let interval = |upkeep: Upkeep| Duration::from_secs(upkeep.row().1) / self.upkeep_speed;
        let started = Instant::now();
        let first = |upkeep: &Upkeep| {
            let wait = interval(*upkeep).mul_f64(self.work.random().fraction());
            Reverse((started + wait, *upkeep))
        };
        let mut waiting: BinaryHeap<Reverse<(Instant, Upkeep)>> =
            Upkeep::ALL.iter().map(first).collect();
        while let Some(Reverse((next, _))) = waiting.peek() {
            tokio::time::sleep_until(*next).await;
            let now = Instant::now();
            let mut due = Vec::new();
            while let Some(mut first) = waiting.peek_mut().filter(|first| first.0.0 <= now) {
                let Reverse((at, upkeep)) = &mut *first;
                *at = now + interval(*upkeep);
                due.push(*upkeep);
            }
            if let Err(error) = self.enqueue(&due).await {
                error.log_in("schedule.request", "the next round requests it again");
            }
        }
    }

    async fn enqueue(&self, due: &[Upkeep]) -> Result<()> {
        let new = due.iter().map(|upkeep| NewJob {
            job: upkeep.job(),
            delay: Duration::ZERO,
        });
        let new: Vec<NewJob> = new.collect();
        queue::enqueue(&self.work.db().write().await?, &new).await?;
        self.work.job_wakeup().notify_one();
        Ok(())
    }

    async fn upkeep(&self, upkeep: Upkeep) -> Result<()> {
        let db = self.work.db();
        match upkeep {
            Upkeep::RetireCredentials => agents::retire(&self.work).await,
            Upkeep::ForgetCodes => accounts::jobs::forget(db, &self.budgets).await,
            Upkeep::ForgetJobs => queue::forget(db).await,
            Upkeep::ForgetLog => {
                while paced(reconcile::forget_log(db)).await? {}
                Ok(())
            }
            Upkeep::ForgetChallenges => {
                while paced(passkeys::forget_challenges(db)).await? {}
                Ok(())
            }
            Upkeep::ForgetKeys => {
                while paced(messages::forget_keys(db)).await? {}
                Ok(())
            }
            Upkeep::ExpireInboxes => {
                inbox::expire(db, INBOX_RETENTION_DAYS).await?;
                while paced(messages::forget_deletions(db, INBOX_RETENTION_DAYS)).await? {}
                Ok(())
            }
            Upkeep::SweepObjects => {
                while self.objects.sweep(db, files::forgetting).await? {}
                Ok(())
            }
            Upkeep::ExpireUploads => {
                while paced(files::expire(db)).await? {}
                while paced(shares::forget(db)).await? {}
                Ok(())
            }
            Upkeep::SweepWebhooks => {
                webhooks::sweep(db).await?;
                self.wake_webhooks.notify_one();
                Ok(())
            }
            Upkeep::SweepPushes => {
                push::sweep(db).await?;
                self.wake_pushes.notify_one();
                Ok(())
            }
            Upkeep::ForgetPushes => push::forget(db).await,
            Upkeep::RotateDeliveries => webhooks::rotate_log(db).await,
            Upkeep::PurgeRelations => {
                while paced(purge_relations(db)).await? {}
                Ok(())
            }
            Upkeep::ForgetToolCalls => tool_calls::forget(&self.work).await,
            Upkeep::LogPushes => inbox::log_left_behind(db).await,
            Upkeep::MeasureRetention => {
                files::measure(db, self.files_bytes_alert).await?;
                retention::measure(db).await
            }
            Upkeep::PublishReadMarks => conversations::publish_forgotten_marks(&self.work).await,
            Upkeep::PublishEndingKeys => agents::publish_ending_keys(&self.work).await,
            Upkeep::PublishDigest => {
                let objects = self.publishes_digests.then_some(&self.objects);
                access_log::publish_digest(db, objects).await
            }
        }
    }

    /// Seals webhook secrets under the first key. Every node does this by itself: while the ring
    /// changes, nodes have different ones.
    async fn reseal_webhooks(&self) {
        let every = RESEAL_INTERVAL / self.upkeep_speed;
        tokio::time::sleep(every.mul_f64(self.work.random().fraction())).await;
        loop {
            if let Err(error) = webhooks::reseal(&self.work, &self.webhook_seal).await {
                error.log_in("webhooks.reseal", "the next round seals them");
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Seals endpoints of pushes under the first key, on every node like the webhooks' secrets.
    async fn reseal_pushes(&self) {
        let every = push::RESEAL_INTERVAL / self.upkeep_speed;
        tokio::time::sleep(every.mul_f64(self.work.random().fraction())).await;
        loop {
            if let Err(error) = push::reseal(self.work.db(), &self.push_seal).await {
                error.log_in("push.reseal", "the next round seals them");
            }
            tokio::time::sleep(every).await;
        }
    }

    async fn end_consent(&self, end: ConsentEnd) -> Result<()> {
        match end {
            ConsentEnd::Relation(relation) => {
                grants::end_of_relation(&self.work, relation).await?;
                approvals::end_of_relation(&self.work, relation).await
            }
            ConsentEnd::Member(conversation, principal) => {
                grants::end_of_member(&self.work, conversation, principal).await?;
                approvals::end_of_member(&self.work, conversation, principal).await
            }
            ConsentEnd::Device(user, device) => {
                tool_calls::revoke_consent_of_device(&self.work, user, &device).await
            }
        }
    }

    /// Denies overdue tool calls. Every node does this by itself: a deadline waits for no lease of
    /// a dead node.
    async fn expire_tool_calls(&self) {
        loop {
            tokio::time::sleep(tool_calls::SWEEP_INTERVAL).await;
            if let Err(error) = tool_calls::expire(&self.deadlines).await {
                error.log_in("tool_calls.expire", "the next round denies them");
            }
        }
    }

    /// Closes overdue approvals, on every node like the tool calls.
    async fn expire_approvals(&self) {
        loop {
            tokio::time::sleep(approvals::SWEEP_INTERVAL).await;
            if let Err(error) = approvals::expire(&self.deadlines).await {
                error.log_in("approvals.expire", "the next round closes them");
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
                locale,
            } => {
                let mail = CodeMail {
                    recipient,
                    scene,
                    nonce,
                    locale,
                };
                accounts::jobs::mail_code(self.work.db(), &self.mailer, &self.codes, &mail).await
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
            Job::SecurityNotice { user, change, at } => {
                let change = SecurityChange::from_name(&change)
                    .ok_or_else(|| JobError::Fail(queue::unreadable()))?;
                accounts::jobs::mail_change(self.work.db(), &self.mailer, user, change, at).await
            }
            Job::AddressNotice {
                recipient,
                locale,
                change,
                at,
            } => {
                let change = SecurityChange::from_name(&change)
                    .ok_or_else(|| JobError::Fail(queue::unreadable()))?;
                let to = Addressee {
                    email: recipient,
                    locale,
                };
                accounts::jobs::mail_address(&self.mailer, &to, change, at).await
            }
            Job::ReplaceAgentKeys { agent } => {
                Ok(group_keys::replace_for_agent(&self.work, agent).await?)
            }
            Job::SettleAgentTokens { agent } => Ok(agents::settle_tokens(&self.work, agent).await?),
            Job::ReplaceKeys { user, device_id } => {
                Ok(group_keys::replace_held(&self.work, user, &device_id).await?)
            }
            Job::EraseAccount { user } => Ok(erasure::account(&self.work, user).await?),
            Job::EraseAgent { agent, owner } => Ok(erasure::agent(&self.work, agent, owner).await?),
            Job::EndConsent(end) => Ok(self.end_consent(end).await?),
            Job::EndUnreadFiles { conversation } => {
                while paced(files::end_unread(self.work.db(), conversation)).await? {}
                Ok(())
            }
            Job::Announce { principal } => Ok(announcements::publish(&self.work, principal).await?),
            Job::Upkeep(name) => {
                let upkeep =
                    Upkeep::from_name(&name).ok_or_else(|| JobError::Fail(queue::unreadable()))?;
                Ok(self.upkeep(upkeep).await?)
            }
        }
    }
}
