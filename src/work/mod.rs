//! The unit of work: a transaction with its effects.
//!
//! A store changes rows and records the effects: events ([`Tx::emit`]), revocations
//! ([`Tx::revoke`]), jobs ([`Tx::enqueue`]). The commit makes all of them true, or none. A single
//! statement appends the events to the inboxes right before the commit. So a transaction locks
//! inboxes last and in order. Sockets and other nodes are notified after the commit. A publication
//! never fails a request, because the sweep finds everything that is lost on the way.
//!
//! Why: ADR 2.

use std::{ops::Deref, sync::Arc, time::Duration};

use blindpipe_protocol::revocation::RevocationReason;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::Instrument;

use crate::{
    db::{self, Db},
    delivery::backplane::Backplane,
    error::{Error, Result},
    events::Event,
    ids::{ConversationId, CredentialId, EventId, Principal},
    inbox::{self, AppendedEvent, NewEvent},
    jobs::{
        Job,
        queue::{self, NewJob},
    },
    random::Random,
    telemetry::trace,
};

/// Runs transactions; clones share the pool.
#[derive(Clone)]
pub struct UnitOfWork {
    db: Db,
    random: Random,
    backplane: Backplane,
    job_wakeup: Arc<Notify>,
}

/// An open transaction and its effects.
pub struct Tx {
    tx: db::Tx,
    random: Random,
    effects: Mutex<Effects>,
}

/// The effects of a transaction.
#[derive(Default)]
struct Effects {
    /// Events that a statement of the transaction has appended itself.
    appended: Vec<AppendedEvent>,
    events: Vec<NewEvent>,
    revocations: Vec<Revocation>,
    jobs: Vec<NewJob>,
    /// Whether a refusal commits the changes before it.
    keeps_refused: bool,
}

struct Revocation {
    credentials: Vec<CredentialId>,
    reason: RevocationReason,
}

impl UnitOfWork {
    /// A unit of work over a pool.
    pub fn new(db: Db, random: Random, backplane: Backplane) -> Self {
        UnitOfWork {
            db,
            random,
            backplane,
            job_wakeup: Arc::default(),
        }
    }

    /// A unit of work over another pool.
    pub fn over(&self, db: Db) -> Self {
        UnitOfWork { db, ..self.clone() }
    }

    /// The pool, for statements that stand alone.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The source of ids.
    pub fn random(&self) -> &Random {
        &self.random
    }

    /// Runs `work` in one transaction, commits, then publishes. An error rolls everything back,
    /// unless it comes from [`Tx::commit_with`]. `name` is `feature.operation`, for the metrics.
    pub async fn run<T>(
        &self,
        name: &'static str,
        work: impl AsyncFnOnce(&Tx) -> Result<T>,
    ) -> Result<T> {
        let whole = async {
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
        };
        whole.instrument(trace::of_part(name, "client")).await
    }

    async fn commit(&self, Tx { tx, effects, .. }: Tx) -> Result<()> {
        let effects = effects.into_inner();
        queue::enqueue(&tx, &effects.jobs).await?;
        let mut appended = effects.appended;
        appended.extend(inbox::append_all(&tx, &effects.events).await?);
        let guard = self.backplane.guard(&appended);
        tx.commit().await?;
        guard.disarm();
        // Revocations come first, so that a revoked device gets none of the events.
        for revocation in effects.revocations {
            self.revoked(revocation.credentials, revocation.reason);
        }
        self.backplane.publish(&appended);
        if !effects.jobs.is_empty() {
            self.job_wakeup.notify_one();
        }
        Ok(())
    }

    /// Notified when a transaction has enqueued jobs.
    pub fn job_wakeup(&self) -> Arc<Notify> {
        self.job_wakeup.clone()
    }

    /// Closes the sockets of credentials that a statement of its own has revoked.
    pub fn revoked(&self, credentials: Vec<CredentialId>, reason: RevocationReason) {
        self.backplane.invalidate(credentials, reason);
    }
}

impl Tx {
    /// The source of ids.
    pub fn random(&self) -> &Random {
        &self.random
    }

    /// Emits an event to `recipients` once the transaction is committed. Each recipient gets a
    /// transaction's events in the order of their emission.
    pub fn emit(
        &self,
        event: Event,
        conversation: Option<ConversationId>,
        recipients: Vec<Principal>,
    ) -> Result<()> {
        let id = EventId::generate(&self.random);
        self.emit_as(id, event, conversation, recipients)
    }

    /// Emits an event with an id that the caller has chosen.
    pub fn emit_as(
        &self,
        id: EventId,
        event: Event,
        conversation: Option<ConversationId>,
        recipients: Vec<Principal>,
    ) -> Result<()> {
        if recipients.is_empty() {
            return Ok(());
        }
        let event = NewEvent::new(id, &event, conversation, recipients)?;
        self.effects.lock().events.push(event);
        Ok(())
    }

    /// Publishes an event that the transaction has appended to inboxes, once it is committed. It
    /// comes before those that are emitted.
    pub fn publish(&self, event: AppendedEvent) {
        self.effects.lock().appended.push(event);
    }

    /// Records an event that has no recipients yet. A later transaction emits it.
    pub fn record(&self, event: &Event) -> Result<EventId> {
        let id = EventId::generate(&self.random);
        let recorded = NewEvent::new(id, event, None, Vec::new())?;
        self.effects.lock().events.push(recorded);
        Ok(id)
    }

    /// Emits a recorded event to `recipients` once the transaction is committed.
    pub fn emit_recorded(&self, event: NewEvent, recipients: Vec<Principal>) {
        if !recipients.is_empty() {
            let event = NewEvent {
                recipients,
                ..event
            };
            self.effects.lock().events.push(event);
        }
    }

    /// Closes the sockets of credentials that this transaction revokes, on every node, once it is
    /// committed.
    pub fn revoke(&self, credentials: Vec<CredentialId>, reason: RevocationReason) {
        if credentials.is_empty() {
            return;
        }
        let revocation = Revocation {
            credentials,
            reason,
        };
        self.effects.lock().revocations.push(revocation);
    }

    /// Enqueues a job, which runs after the commit.
    pub fn enqueue(&self, job: Job) {
        self.enqueue_in(job, Duration::ZERO);
    }

    /// Enqueues a job that runs `delay` after the commit.
    pub fn enqueue_in(&self, job: Job, delay: Duration) {
        self.effects.lock().jobs.push(NewJob { job, delay });
    }

    /// Refuses and keeps the changes so far, for example the count of a refused try. The caller
    /// returns this error at once.
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
