//! Messages: the one send path (REST, frames, later webhook replies) and its idempotency.
//!
//! Promises: a send that was answered is durable; `seq` is gapless per conversation in commit order; one id sends one
//! message within 24 hours, however often and wherever it is tried.
//!
//! Concurrent sends of a node are gathered: each conversation belongs to one lane, a lane commits one batch at a time,
//! and the next batch grows while it does. Alone, a send waits for nobody. The limiter decides while a send waits for its
//! lane, and nothing is stored that it has not admitted.

mod ahead;
mod batch;
mod body;
mod entrance;
pub mod history;
pub mod http;
mod store;
mod writer;

use std::{sync::Arc, time::Duration};

pub use blindpipe_protocol::messages::Sent;
use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use self::body::Draft;
use self::entrance::Entrance;
use crate::{
    auth::revoked::RevokedCredentials,
    backplane::Backplane,
    db::Db,
    error::{Code, Error, Result},
    ids::{ConversationId, MessageId, Principal},
    limits::Pass,
    metrics,
    random::Random,
};

/// Sends of one lane that may wait; more are refused with 503.
const QUEUE_CAPACITY: usize = 4096;
/// Bytes of payloads that may wait in all lanes.
const MAX_QUEUED_BYTES: usize = 128 * 1024 * 1024;
/// Longest wait for an answer. What it ends is unknown, not undone: the same id tried again tells.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// A message on its way in, its sender recognised but not yet proven.
pub struct Outgoing {
    /// Who says it.
    pub sender: Principal,
    /// The session or token that must still count when it is stored.
    pub credential: Uuid,
    /// Where to.
    pub conversation: ConversationId,
    /// What.
    pub draft: Draft,
}

/// Takes sends; clones share the lanes.
#[derive(Clone)]
pub struct MessageWriter {
    random: Random,
    dead: RevokedCredentials,
    /// Bytes of payloads that may wait.
    room: Arc<Semaphore>,
    lanes: Arc<[mpsc::Sender<PendingSend>]>,
}

/// A send with the one who waits for it.
struct PendingSend {
    id: MessageId,
    message: Outgoing,
    /// What the limiter says.
    pass: Pass,
    answer: oneshot::Sender<Result<Sent>>,
    /// Batches it has been in without a decision.
    tries: u32,
    /// What it takes of the memory for waiting sends; given back when it is dropped.
    #[expect(dead_code, reason = "held, not read")]
    place: Option<OwnedSemaphorePermit>,
}

impl MessageWriter {
    /// Spawns `lanes` lanes; they end when the last clone is dropped and what waits is answered.
    pub fn start(
        db: &Db,
        backplane: &Backplane,
        random: Random,
        dead: RevokedCredentials,
        lanes: usize,
        tasks: &TaskTracker,
    ) -> Self {
        let lanes = (0..lanes).map(|_| {
            let (lane, waiting) = mpsc::channel(QUEUE_CAPACITY);
            tasks.spawn(writer::run(
                db.clone(),
                backplane.clone(),
                Entrance::new(waiting),
            ));
            lane
        });
        let room = Arc::new(Semaphore::new(MAX_QUEUED_BYTES));
        MessageWriter {
            random,
            dead,
            room,
            lanes: lanes.collect(),
        }
    }

    /// Stores a message, if its sender may, and tells it; returns once it is durable.
    pub async fn send(&self, mut pass: Pass, message: Outgoing) -> Result<Sent> {
        // From here on it is the lane that hears of the decision: the caller is not woken for it.
        if let Some(verdict) = (&mut pass).now_or_never() {
            verdict?;
        }
        let (answer, answered) = oneshot::channel();
        let id = MessageId::generate(&self.random);
        // The low half of an id is chance.
        let lane = message.conversation.0.as_u64_pair().1 as usize % self.lanes.len();
        let credential = message.credential;
        let bytes = u32::try_from(message.draft.payload.len()).unwrap_or(u32::MAX);
        let place = self.room.clone().try_acquire_many_owned(bytes);
        let place =
            Some(place.map_err(|_| Error::unavailable("the waiting sends take too much memory"))?);
        let waiting = PendingSend {
            id,
            message,
            pass,
            answer,
            tries: 0,
            place,
        };
        self.lanes[lane]
            .try_send(waiting)
            .map_err(|_| Error::unavailable("a send lane is full"))?;
        let outcome = match tokio::time::timeout(SEND_TIMEOUT, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(Error::unavailable("the send lane is gone")),
            Err(_) => Err(Error::unavailable("no commit in time")),
        };
        if outcome.as_ref().is_err_and(|error| {
            matches!(error.code(), Code::Unauthorized | Code::AgentTokenInvalid)
        }) {
            self.dead.mark_revoked(credential).await;
        }
        match &outcome {
            Ok(sent) if sent.duplicate => metrics::send("replayed"),
            Ok(_) => metrics::send("stored"),
            // The limiter counts what it refuses, wherever that is told.
            Err(error) if error.code() == Code::RateLimited => {}
            Err(error) => metrics::send(error.code().wire()),
        }
        outcome
    }
}

/// Deletes some of the ids that are free again; true while there may be more.
pub async fn forget_keys(db: &Db) -> Result<bool> {
    store::forget_keys(db).await
}
