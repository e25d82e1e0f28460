//! THE INBOX: a durable sequence of events per principal, numbered 1, 2, 3 without gaps, in commit
//! order.
//!
//! This module owns heads, entries, readers' acks and cursors. The unit of work appends a
//! transaction's events right before its commit ([`append_all`]) and publishes the deliveries after
//! it. Sockets, polls and webhooks all move a cursor over this sequence. An ack moves the durable
//! cursor, which an agent has once and a user once per device.
//!
//! Why: ADR 3, ADR 4.

mod acks;
pub(crate) mod groups;
mod store;

use chrono::{DateTime, Utc};

use self::store::{Ack, Reads};
pub(crate) use self::{
    acks::Acks,
    store::{Reader, from_column as epoch_of_column},
};
use crate::{
    cursor::Cursor,
    db::{Conn, Db, Tx, batches::paced},
    error::{Code, Error, Result},
    events::{self, EncodedEvent, Event, EventKind},
    ids::{AgentId, ConversationId, Credential, EventId, Principal, PrincipalId, TokenId},
    limits::quotas::{MAX_PAGE_BYTES, MAX_PAGE_EVENTS, MAX_POLL_EVENTS},
    metrics,
    planted::PlantedBug,
    telemetry::trace::{self, TraceContext},
};

/// An event's number in an inbox that it was appended to.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// The owner of the inbox.
    pub recipient: Principal,
    /// The event's number there.
    pub seq: i64,
    /// Whether webhooks deliver from the inbox: a turn is open in the statement's snapshot.
    pub has_webhook: bool,
}

impl Delivery {
    /// The number that the inbox has reached.
    pub fn head(&self) -> InboxHead {
        InboxHead {
            principal: self.recipient.id(),
            seq: self.seq,
        }
    }
}

/// The number that an inbox has reached, as a hint carries it.
#[derive(Clone, Copy, Debug)]
pub struct InboxHead {
    /// The owner of the inbox.
    pub principal: PrincipalId,
    /// The last number.
    pub seq: i64,
}

/// An event that has been appended to inboxes. It is published after the commit.
pub struct AppendedEvent {
    /// The event, encoded once.
    pub encoded: EncodedEvent,
    /// The inboxes, each with the event's number.
    pub deliveries: Vec<Delivery>,
    /// The trace that the event is part of.
    pub trace: Option<TraceContext>,
}

/// An event to append.
pub struct NewEvent {
    /// When an earlier transaction has recorded it. Only its recipients are new then.
    pub recorded_at: Option<DateTime<Utc>>,
    pub id: EventId,
    /// The kind of the event.
    pub kind: EventKind,
    /// The conversation of the event, if it has any.
    pub conversation: Option<ConversationId>,
    /// The event's data, as JSON.
    pub data: String,
    /// The owners of the inboxes.
    pub recipients: Vec<Principal>,
}

impl NewEvent {
    /// An event with its data encoded as JSON.
    pub fn new(
        id: EventId,
        event: &Event,
        conversation: Option<ConversationId>,
        recipients: Vec<Principal>,
    ) -> Result<Self> {
        let data = event
            .data_json()
            .map_err(|error| Error::internal(Code::InternalError, error))?;
        Ok(NewEvent {
            recorded_at: None,
            id,
            kind: event.kind(),
            conversation,
            data,
            recipients,
        })
    }
}

/// An event as an inbox stores it.
pub struct Entry {
    /// The event's number in the inbox.
    pub seq: i64,
    pub encoded: EncodedEvent,
}

/// The values that a reader starts from: the inbox's bounds and its own position.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The last number given out.
    pub head: i64,
    /// The first number still kept; head + 1 if there is none.
    pub oldest: i64,
    /// This reader's durable position.
    pub acked: i64,
    /// The epoch that these numbers are of.
    pub epoch: u64,
}

/// The position at which a reader starts.
pub enum Start {
    /// Everything after this number can be read.
    After(i64),
    /// A part is gone: the reader must fetch state over REST and go on from the head.
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
            Some(_) if PlantedBug::CursorIsIgnored.is_planted() => self.head,
            Some(cursor) if cursor.epoch == self.epoch || PlantedBug::NoEpoch.is_planted() => {
                cursor.seq
            }
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
        store::epoch(&self.db.read().await?).await
    }

    /// The connections that it reads over.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The bounds of an inbox and a reader's position in it.
    pub async fn bounds(&self, reader: &Reader) -> Result<Bounds> {
        let bounds = store::bounds(&self.db, reader, None).await?;
        bounds.ok_or(Code::InternalError.into())
    }

    /// Like [`bounds`](Self::bounds); none if the reader's credential has ended.
    pub async fn bounds_by(
        &self,
        reader: &Reader,
        credential: Credential,
    ) -> Result<Option<Bounds>> {
        store::bounds(&self.db, reader, Some(credential)).await
    }

    /// The next events after `after`, at most `limit` and a few megabytes.
    pub async fn read(&self, principal: PrincipalId, after: i64, limit: i64) -> Result<Vec<Entry>> {
        self.read_page(principal, after, limit, MAX_PAGE_BYTES)
            .await
    }

    /// Like [`read`](Self::read), up to `bytes`. A single larger event is a page of its own.
    pub async fn read_page(
        &self,
        principal: PrincipalId,
        after: i64,
        limit: i64,
        bytes: i64,
    ) -> Result<Vec<Entry>> {
        metrics::inbox_read();
        let limit = limit.min(MAX_PAGE_EVENTS);
        let client = self.db.read().await?;
        store::read(&client, principal, after, limit, bytes).await
    }

    /// Like [`read`](Self::read) for an agent's poll, which the reading transaction logs. None if
    /// the cursor is of an earlier epoch.
    pub async fn poll(
        &self,
        agent: AgentId,
        after: Cursor,
        limit: i64,
    ) -> Result<Option<Vec<Entry>>> {
        metrics::inbox_read();
        let limit = limit.min(MAX_POLL_EVENTS);
        loop {
            let polled = self.db.run("inbox.poll", async |tx| {
                poll_once(tx, agent, after, limit).await
            });
            let (page, is_logged) = polled.await?;
            if is_logged {
                return Ok(page);
            }
        }
    }

    /// Acks at once for an agent, unless its token has died since it was proven.
    pub async fn ack_by_token(&self, agent: AgentId, token: TokenId, cursor: Cursor) -> Result<()> {
        let counts = store::ack_by_token(&self.db, agent, token, cursor).await?;
        if counts {
            log_pushes(&self.db.write().await?, agent).await
        } else {
            Err(Code::AgentTokenInvalid.into())
        }
    }

    /// The heads of many inboxes, for the sweep.
    pub async fn heads(&self, principals: &[PrincipalId]) -> Result<Vec<InboxHead>> {
        store::heads(&self.db, principals).await
    }
}

/// The page of a poll, none if the cursor is of an earlier epoch, and whether it is logged. If not,
/// a piece of what was pushed before is.
async fn poll_once(
    tx: &Conn,
    agent: AgentId,
    after: Cursor,
    limit: i64,
) -> Result<(Option<Vec<Entry>>, bool)> {
    // In this order, so that the events are of this epoch or of an earlier one.
    let (page, epoch) = tokio::join!(
        store::read(tx, agent.into(), after.seq, limit, MAX_PAGE_BYTES),
        store::epoch(tx)
    );
    let page = page?;
    if epoch? != after.epoch {
        return Ok((None, true));
    }
    let Some(last) = page.last() else {
        return Ok((Some(page), true));
    };
    let reads = Reads {
        agents: &[agent],
        up_to: &[Some(last.seq)],
        after: Some(after.seq),
        epoch: None,
    };
    let behind = store::log_reads(tx, &reads).await?;
    Ok((Some(page), behind.is_empty()))
}

/// Writes an ack in the caller's transaction, which does not log it ([`log_acked`]). Nothing moves
/// once Postgres has another epoch.
pub async fn ack(tx: &Tx, reader: &Reader, up_to: Cursor) -> Result<()> {
    let ack = Ack {
        reader: reader.clone(),
        seq: up_to.seq,
        credential: None,
    };
    store::ack(tx, &[ack], Some(up_to.epoch)).await
}

/// Logs what an agent has acked and nobody has logged yet.
async fn log_pushes(client: &Conn, agent: AgentId) -> Result<()> {
    log_pushes_of(client, vec![agent]).await
}

async fn log_pushes_of(client: &Conn, mut agents: Vec<AgentId>) -> Result<()> {
    while !agents.is_empty() {
        let reads = Reads {
            agents: &agents,
            up_to: &vec![None; agents.len()],
            after: None,
            epoch: None,
        };
        agents = store::log_reads(client, &reads).await?;
    }
    Ok(())
}

/// Logs acks of agents that another module has written.
pub async fn log_acked(db: &Db, agents: &[AgentId]) -> Result<()> {
    log_pushes_of(&db.write().await?, agents.to_vec()).await
}

/// Logs acks whose node died before it logged them.
pub async fn log_left_behind(db: &Db) -> Result<()> {
    let mut after = Some(AgentId::NIL);
    while let Some(agent) = after {
        let (behind, last) = store::unlogged(db, agent).await?;
        for agent in behind {
            log_pushes(&db.write().await?, agent).await?;
        }
        after = last;
    }
    Ok(())
}

/// Makes an empty inbox, in the transaction that makes its owner.
pub async fn create(tx: &Tx, principal: PrincipalId) -> Result<()> {
    store::create(tx, principal).await
}

/// Makes a reader's position at the present head, if it has none.
pub async fn create_reader(tx: &Tx, reader: &Reader) -> Result<()> {
    store::create_reader(tx, reader).await
}

/// Renames a device's reader; its position stays.
pub async fn rename_reader(tx: &Tx, reader: &Reader, device_id: &str) -> Result<()> {
    store::rename_reader(tx, reader, device_id).await
}

/// Removes a device's reader. A device that comes back is a new reader.
pub async fn forget_reader(tx: &Tx, reader: &Reader) -> Result<()> {
    store::forget_reader(tx, reader).await
}

/// Appends events, each to its own recipients. A recipient of several gets them in this order. It
/// locks the inboxes in order until commit, so a transaction that calls this twice can deadlock
/// with another.
pub async fn append_all(tx: &Tx, events: &[NewEvent]) -> Result<Vec<AppendedEvent>> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let outcomes = store::append_all(tx, events).await?;
    let trace = trace::current();
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
                encoded: events::encoded(
                    *id,
                    kind.name(),
                    *conversation,
                    event.recorded_at.unwrap_or(at),
                    data,
                ),
                deliveries,
                trace,
            }
        });
    Ok(appended.collect())
}

/// Events that earlier transactions have recorded, in the order of `ids`, each without recipients.
pub async fn recorded(tx: &Tx, ids: &[EventId]) -> Result<Vec<NewEvent>> {
    store::recorded(tx, ids).await
}

/// Deletes entries that are older than `days`, and events that no entry refers to any more.
/// Messages are no events; they stay. Also deletes unused consumer groups. Works in small batches, each a transaction. If one half
/// fails, the other still runs.
pub async fn expire(db: &Db, days: i32) -> Result<()> {
    let entries = async {
        while paced(store::expire_entries(db, days)).await? {}
        Ok(())
    };
    let events = async {
        while paced(store::expire_events(db, days + 1)).await? {}
        Ok(())
    };
    let outcome = entries.await;
    let outcome = outcome.and(events.await);
    outcome.and(groups::expire(db).await)
}
