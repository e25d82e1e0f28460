//! THE INBOX: one durable sequence of events per principal, numbered 1, 2, 3 without gaps, in commit order.
//!
//! Owns heads, entries, readers' acks and cursors. The unit of work appends a transaction's events right before its commit
//! ([`append_all`]) and publishes the deliveries after it. Sockets, polls and webhooks are the same thing, a cursor over
//! this sequence; an ack moves the durable one, of which an agent has one and a user one per device.

mod acks;
mod store;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

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
}

/// Where a reader stands after it has said from where it wants to read.
pub enum Start {
    /// Everything after this number can be read.
    After(i64),
    /// Some of it is gone: the reader must fetch state over REST and go on from the head.
    Resync,
}

/// Reads inboxes; clones share the epoch.
#[derive(Clone)]
pub struct Inbox {
    db: Db,
    epoch: Arc<AtomicU64>,
}

impl Inbox {
    /// Reads the epoch from Postgres.
    pub async fn open(db: Db) -> Result<Self> {
        let inbox = Inbox {
            db,
            epoch: Arc::default(),
        };
        inbox.refresh_epoch().await?;
        Ok(inbox)
    }

    /// Postgres's timeline and the operator's count of restores: rises whenever committed events may have been lost.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Reads the epoch again; true if it has changed.
    pub async fn refresh_epoch(&self) -> Result<bool> {
        let now = store::epoch(&self.db).await?;
        Ok(self.epoch.swap(now, Ordering::AcqRel) != now)
    }

    /// A cursor of this epoch.
    pub fn cursor(&self, seq: i64) -> Cursor {
        Cursor {
            epoch: self.epoch(),
            seq,
        }
    }

    /// The same inboxes and epoch, read over other connections.
    pub fn over(&self, db: Db) -> Self {
        Inbox {
            db,
            epoch: self.epoch.clone(),
        }
    }

    /// Where it reads.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The bounds of an inbox and a reader's place in it.
    pub async fn bounds(&self, reader: &Reader) -> Result<Bounds> {
        store::bounds(&self.db, reader).await
    }

    /// Where to begin: at the cursor if one is given, else after the reader's last ack.
    pub fn start(&self, bounds: &Bounds, cursor: Option<Cursor>) -> Start {
        let after = match cursor {
            None => bounds.acked,
            Some(cursor) if cursor.epoch == self.epoch() => cursor.seq,
            Some(_) => return Start::Resync,
        };
        // A number ahead of the head was never given out in this epoch.
        if after > bounds.head || after + 1 < bounds.oldest {
            Start::Resync
        } else {
            Start::After(after)
        }
    }

    /// The refusal of a cursor that cannot be read from.
    pub fn expired(&self, bounds: &Bounds) -> Error {
        Error::from(Code::CursorExpired)
            .with("oldest", self.cursor(bounds.oldest - 1).to_string())
            .with("head", self.cursor(bounds.head).to_string())
    }

    /// The next events after `after`, at most `limit` and a few megabytes.
    pub async fn read(&self, principal: Uuid, after: i64, limit: i64) -> Result<Vec<Entry>> {
        metrics::inbox_read();
        store::read(&self.db, principal, after, limit.min(MAX_PAGE_EVENTS)).await
    }

    /// Acks at once for an agent, unless its token has died since it was proven.
    pub async fn ack_by_token(&self, agent: AgentId, token: TokenId, seq: i64) -> Result<()> {
        let counts = store::ack_by_token(&self.db, agent, token, seq).await?;
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
    store::ack(tx, &[(reader.clone(), seq)]).await
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

/// Deletes entries that are older than `days`, and then what the events said that only such entries referred to: an event
/// gets its entries in the statement that writes it and never another, so a day later none of them is left. Messages are
/// no events; they stay. Small batches, each a transaction.
pub async fn expire(db: &Db, days: i32) -> Result<()> {
    while store::expire_entries(db, days).await? {}
    while store::expire_events(db, days + 1).await? {}
    Ok(())
}
