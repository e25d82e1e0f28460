//! THE INBOX: one durable sequence of events per principal, numbered 1, 2, 3 without gaps, in commit order.
//!
//! Owns heads, entries, readers' acks and cursors. The unit of work appends a transaction's events right before its commit
//! ([`append_all`]) and publishes the deliveries after it. Sockets, polls and webhooks are the same thing, a cursor over
//! this sequence; an ack moves the durable one, of which an agent has one and a user one per device.

mod acks;
mod store;

use serde::Serialize;
use uuid::Uuid;

pub(crate) use self::{acks::Acks, store::Reader};
use crate::{
    cursor::Cursor,
    db::{Db, Tx},
    error::{Code, Error, Result},
    events::{self, EncodedEvent, EventKind},
    ids::{AgentId, ConversationId, EventId, TokenId},
    limits::quotas::MAX_PAGE_EVENTS,
    metrics,
};

/// One event's number in one inbox: what a hint carries.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Whose inbox.
    pub principal: Uuid,
    /// The event's number there.
    pub seq: i64,
}

/// An event that stands in inboxes and is published after the commit.
pub struct AppendedEvent {
    /// The event, encoded once.
    pub encoded: EncodedEvent,
    /// Where it went.
    pub deliveries: Vec<Delivery>,
}

/// An event that is to be appended.
pub struct NewEvent {
    /// Its id.
    pub id: EventId,
    /// What it is.
    pub kind: EventKind,
    /// Where it happened, if in a conversation.
    pub conversation: Option<ConversationId>,
    /// What it says: JSON.
    pub data: String,
    /// Whose inboxes it goes to.
    pub recipients: Vec<Uuid>,
}

impl NewEvent {
    /// With `data` encoded.
    pub fn new(
        id: EventId,
        kind: EventKind,
        conversation: Option<ConversationId>,
        data: &impl Serialize,
        recipients: Vec<Uuid>,
    ) -> Result<Self> {
        let data = serde_json::to_string(data)
            .map_err(|error| Error::internal(Code::InternalError, error))?;
        Ok(NewEvent {
            id,
            kind,
            conversation,
            data,
            recipients,
        })
    }
}

/// An event as it stands in an inbox.
pub struct Entry {
    /// Its number.
    pub seq: i64,
    /// The event.
    pub encoded: EncodedEvent,
}

/// What a reader needs to start: the inbox's bounds and its own place.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The last number given out.
    pub head: i64,
    /// The first one still kept; head + 1 if none is.
    pub oldest: i64,
    /// This reader's durable ack.
    pub acked: i64,
    /// The epoch that these numbers are of.
    pub epoch: u64,
}

/// Where a reader stands after it has said from where it wants to read.
pub enum Start {
    /// Everything after this number can be read.
    After(i64),
    /// Some of it is gone: the reader must fetch state over REST and go on from the head.
    Resync,
}

impl Bounds {
    /// A cursor of the epoch in which the bounds were read.
    pub fn cursor(&self, seq: i64) -> Cursor {
        Cursor {
            epoch: self.epoch,
            seq,
        }
    }

    /// The place to begin: the cursor if one is given, else the reader's last ack.
    pub fn start(&self, cursor: Option<Cursor>) -> Start {
        let after = match cursor {
            None => self.acked,
            Some(cursor) if cursor.epoch == self.epoch => cursor.seq,
            Some(_) => return Start::Resync,
        };
        // A number ahead of the head was never given out in this epoch.
        if after > self.head || after + 1 < self.oldest {
            Start::Resync
        } else {
            Start::After(after)
        }
    }

    /// The refusal of a cursor that cannot be read from.
    pub fn expired(&self) -> Error {
        Error::from(Code::CursorExpired)
            .with("oldest", self.cursor(self.oldest - 1).to_string())
            .with("head", self.cursor(self.head).to_string())
    }
}

/// Reads inboxes.
#[derive(Clone)]
pub struct Inbox {
    db: Db,
}

impl Inbox {
    /// Reads over these connections.
    pub fn new(db: Db) -> Self {
        Inbox { db }
    }

    /// Postgres's timeline and the operator's count of restores. It rises whenever committed events
    /// may have been lost.
    pub async fn epoch(&self) -> Result<u64> {
        store::epoch(&self.db).await
    }

    /// The connections that it reads over.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The bounds of an inbox and a reader's place in it.
    pub async fn bounds(&self, reader: &Reader) -> Result<Bounds> {
        store::bounds(&self.db, reader).await
    }

    /// The next events after `after`, at most `limit` and a few megabytes.
    pub async fn read(&self, principal: Uuid, after: i64, limit: i64) -> Result<Vec<Entry>> {
        metrics::inbox_read();
        store::read(&self.db, principal, after, limit.min(MAX_PAGE_EVENTS)).await
    }

    /// Acks at once for an agent, unless its token has died since it was proven.
    pub async fn ack_by_token(&self, agent: AgentId, token: TokenId, cursor: Cursor) -> Result<()> {
        let counts = store::ack_by_token(&self.db, agent, token, cursor).await?;
        if counts {
            Ok(())
        } else {
            Err(Code::AgentTokenInvalid.into())
        }
    }

    /// The heads of many inboxes, for the sweep.
    pub async fn heads(&self, principals: &[Uuid]) -> Result<Vec<Delivery>> {
        store::heads(&self.db, principals).await
    }
}

/// Acks together with what else the transaction does.
pub async fn ack(tx: &Tx, reader: &Reader, seq: i64) -> Result<()> {
    store::ack(tx, &[(reader.clone(), seq)], None).await
}

/// Makes an empty inbox, inside the transaction that makes its owner.
pub async fn create(tx: &Tx, principal: Uuid) -> Result<()> {
    store::create(tx, principal).await
}

/// Makes a reader's place at the head as of now, if it has none.
pub async fn create_reader(tx: &Tx, reader: &Reader) -> Result<()> {
    store::create_reader(tx, reader).await
}

/// The device has another name now; its place stays.
pub async fn rename_reader(tx: &Tx, reader: &Reader, device_id: &str) -> Result<()> {
    store::rename_reader(tx, reader, device_id).await
}

/// The device is gone; if it comes back it is a new one.
pub async fn forget_reader(tx: &Tx, reader: &Reader) -> Result<()> {
    store::forget_reader(tx, reader).await
}

/// Appends events, each to recipients of its own; a recipient of several gets them in this order. Takes the inboxes'
/// locks, in order, until commit: a transaction that calls this twice can deadlock with another one.
pub async fn append_all(tx: &Tx, events: &[NewEvent]) -> Result<Vec<AppendedEvent>> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let outcomes = store::append_all(tx, events).await?;
    let appended = events
        .iter()
        .zip(outcomes)
        .map(|(event, (at, deliveries))| {
            let NewEvent {
                id,
                kind,
                conversation,
                data,
                ..
            } = event;
            AppendedEvent {
                encoded: events::encoded(*id, kind.name(), *conversation, at, data),
                deliveries,
            }
        });
    Ok(appended.collect())
}

/// Deletes entries that are older than `days`, and events that no entry refers to any more. Messages are no events; they
/// stay. Works in small batches, each a transaction. If one half fails, the other still runs.
pub async fn expire(db: &Db, days: i32) -> Result<()> {
    let entries = async {
        while store::expire_entries(db, days).await? {}
        Ok(())
    };
    let events = async {
        while store::expire_events(db, days + 1).await? {}
        Ok(())
    };
    let outcome = entries.await;
    outcome.and(events.await)
}
