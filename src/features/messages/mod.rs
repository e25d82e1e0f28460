//! Messages: the one send path (REST, frames, replies to webhooks) and its idempotency.
//!
//! Promises: an answered send is durable. `seq` is gapless per conversation in commit order. An id
//! sends one message within 24 hours, however often and wherever it is repeated. A send is stored
//! only if the limiter has admitted it; the limiter decides before a send is queued. A node gathers
//! concurrent sends. Each conversation belongs to one shard of the writer. A shard commits one
//! batch at a time, and the next batch grows meanwhile. A lone send is a batch of one.

mod answer;
mod batch;
mod body;
mod contended;
pub(crate) mod deletion;
pub(crate) mod history;
pub(crate) mod http;
mod store;
mod within;
mod writer;

pub use blindpipe_protocol::messages::Sent;

pub(crate) use self::within::{find_prior, is_conflict, lock, send_within};
pub use self::{
    body::Draft,
    store::{forget_devices, purge},
    writer::MessageWriter,
};
use crate::{
    db::Db,
    error::Result,
    ids::{ConversationId, Credential, Principal},
};

/// A message that the limiter has admitted. The statement that stores it judges its sender.
pub struct SendRequest {
    pub sender: Principal,
    /// The session or token that must still be valid when the message is stored.
    pub credential: Credential,
    pub conversation: ConversationId,
    pub draft: Draft,
}

/// Deletes some of the expired ids. True while there may be more.
pub async fn forget_keys(db: &Db) -> Result<bool> {
    store::forget_keys(db).await
}

/// Forgets some deletions of messages that no inbox has any more. True while there may be more.
pub async fn forget_deletions(db: &Db, days: i32) -> Result<bool> {
    store::forget_deletions(db, days).await
}
