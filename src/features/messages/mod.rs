//! Messages: the one send path (REST, frames, later webhook replies) and its idempotency.
//!
//! Promises: a send that was answered is durable; `seq` is gapless per conversation in commit order; one id sends one
//! message within 24 hours, however often and wherever it is tried. Nothing is stored that the limiter has not
//! admitted: it decides before a send is queued.
//!
//! A node gathers concurrent sends. Each conversation belongs to one shard of the writer. A shard commits one batch at
//! a time, and the next batch grows meanwhile. A lone send is a batch of one.

mod answer;
mod batch;
mod body;
pub(crate) mod history;
pub(crate) mod http;
mod store;
mod writer;

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

pub use self::{body::Draft, writer::MessageWriter};
use crate::{
    db::Db,
    error::Result,
    ids::{ConversationId, MessageId, Principal},
};

/// A message that the limiter has admitted. The statement that stores it judges its sender.
pub struct SendRequest {
    pub sender: Principal,
    /// The session or token that must still count when the message is stored.
    pub credential: Uuid,
    pub conversation: ConversationId,
    pub draft: Draft,
}

/// The answer to a send.
#[derive(Clone, Debug, Serialize)]
pub struct Sent {
    pub message_id: MessageId,
    pub conversation_id: ConversationId,
    /// The message's number in its conversation.
    pub seq: i64,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
    pub client_message_id: Option<MessageId>,
    /// Whether this id had been sent before.
    pub duplicate: bool,
}

/// Deletes some of the ids that are free again; true while there may be more.
pub async fn forget_keys(db: &Db) -> Result<bool> {
    store::forget_keys(db).await
}
