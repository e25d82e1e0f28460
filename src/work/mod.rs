//! The unit of work: one transaction, and what follows from its commit.
//!
//! A store changes rows and says what follows: events ([`Tx::emit`]), revocations ([`Tx::revoke`]), jobs ([`Tx::enqueue`]).
//! All of it becomes true with the commit, or none of it. Events reach the inboxes by one statement right before the commit, so the locks on
//! inboxes are the last ones that a transaction takes, and it takes them in order. Sockets and other nodes hear of it after
//! the commit. A publication never fails a request: the sweep finds what is lost on the way.

use std::{ops::Deref, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    db::{self, Db},
    delivery::backplane::Backplane,
    error::{Error, Result},
    events::EventKind,
    ids::{ConversationId, EventId},
    inbox::{self, NewEvent},
    jobs::{
        Job,
        queue::{self, NewJob},
    },
    random::Random,
};

/// Runs transactions; clones share the pool.
#[derive(Clone)]
pub struct UnitOfWork {
    db: Db,
    random: Random,
    backplane: Backplane,
    job_wakeup: Arc<Notify>,
}

/// A transaction under way, and what it has to publish.
pub struct Tx {
    tx: db::Tx,
    random: Random,
    effects: Mutex<Effects>,
}

/// What a transaction has to publish.
#[derive(Default)]
struct Effects {
    events: Vec<NewEvent>,
    revocations: Vec<Revocation>,
    jobs: Vec<NewJob>,
    /// Whether a refusal commits what was done before it.
    keeps_refused: bool,
}

struct Revocation {
    credentials: Vec<Uuid>,
    reason: &'static str,
}

impl UnitOfWork {
    /// Over one pool.
    pub fn new(db: Db, random: Random, backplane: Backplane) -> Self {
        UnitOfWork {
            db,
            random,
            backplane,
            job_wakeup: Arc::default(),
        }
    }

    /// The same over another pool.
    pub fn over(&self, db: Db) -> Self {
        UnitOfWork { db, ..self.clone() }
    }

    /// The pool, for statements that stand alone.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Where ids come from.
    pub fn random(&self) -> &Random {
        &self.random
    }

    /// Runs `work` in one transaction, commits, then publishes. An error rolls everything back, unless it comes from
    /// [`Tx::commit_with`]. `name` is `feature.operation`, for the metrics.
    pub async fn run<T>(
        &self,
        name: &'static str,
        work: impl AsyncFnOnce(&Tx) -> Result<T>,
    ) -> Result<T> {
        let tx = Tx {
            tx: self.db.begin(name).await?,
            random: self.random.clone(),
            effects: Mutex::default(),
        };
        let outcome = work(&tx).await;
        if outcome.is_ok() || tx.effects.lock().keeps_refused {
            self.commit(tx).await?;
        }
        outcome
    }

    async fn commit(&self, Tx { tx, effects, .. }: Tx) -> Result<()> {
        let effects = effects.into_inner();
        queue::enqueue(&tx, &effects.jobs).await?;
        let appended = inbox::append_all(&tx, &effects.events).await?;
        tx.commit().await?;
        // First, so that a device that was revoked hears nothing of what follows.
        for revocation in effects.revocations {
            self.revoked(revocation.credentials, revocation.reason);
        }
        self.backplane.publish(&appended);
        if !effects.jobs.is_empty() {
            self.job_wakeup.notify_one();
        }
        Ok(())
    }

    /// Notified when a transaction has put jobs into the queue.
    pub fn job_wakeup(&self) -> Arc<Notify> {
        self.job_wakeup.clone()
    }

    /// Closes the sockets of credentials that a statement of its own has revoked.
    pub fn revoked(&self, credentials: Vec<Uuid>, reason: &'static str) {
        self.backplane.invalidate(credentials, reason);
    }
}

impl Tx {
    /// Where ids come from.
    pub fn random(&self) -> &Random {
        &self.random
    }

    /// Has `recipients` told of an event once the transaction is committed. Each recipient gets the events of one
    /// transaction in the order in which they were emitted.
    pub fn emit(
        &self,
        kind: EventKind,
        conversation: Option<ConversationId>,
        data: &impl Serialize,
        recipients: Vec<Uuid>,
    ) -> Result<()> {
        let id = EventId::generate(&self.random);
        self.emit_as(id, kind, conversation, data, recipients)
    }

    /// Emits an event whose id the caller has chosen.
    pub fn emit_as(
        &self,
        id: EventId,
        kind: EventKind,
        conversation: Option<ConversationId>,
        data: &impl Serialize,
        recipients: Vec<Uuid>,
    ) -> Result<()> {
        if recipients.is_empty() {
            return Ok(());
        }
        let event = NewEvent::new(id, kind, conversation, data, recipients)?;
        self.effects.lock().events.push(event);
        Ok(())
    }

    /// Closes the sockets of credentials that this transaction revokes, on every node, once it is committed.
    pub fn revoke(&self, credentials: Vec<Uuid>, reason: &'static str) {
        if credentials.is_empty() {
            return;
        }
        let revocation = Revocation {
            credentials,
            reason,
        };
        self.effects.lock().revocations.push(revocation);
    }

    /// Puts a job into the queue. It runs once the transaction is committed.
    pub fn enqueue(&self, job: Job) {
        self.enqueue_in(job, Duration::ZERO);
    }

    /// Puts a job into the queue that runs after `delay`.
    pub fn enqueue_in(&self, job: Job, delay: Duration) {
        self.effects.lock().jobs.push(NewJob { job, delay });
    }

    /// Refuses and keeps what was done before: a try that was refused counts. The caller returns this at once.
    pub fn commit_with<T>(&self, refusal: impl Into<Error>) -> Result<T> {
        self.effects.lock().keeps_refused = true;
        Err(refusal.into())
    }
}

impl Deref for Tx {
    type Target = db::Tx;

    fn deref(&self) -> &db::Tx {
        &self.tx
    }
}
