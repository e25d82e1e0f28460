//! Stores sends in Postgres.

mod deletion;
mod devices;
mod history;
mod purge;
mod statement;

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

use self::statement::{Columns, LOCK, LOCKS};
pub use self::{
    deletion::{delete, forget_deletions},
    devices::forget_devices,
    history::{Page, Referring, history, referring},
    purge::purge,
};
use super::{SendRequest, batch::PendingSend};
use crate::{
    db::{Conn, Db, Tx, batches::BATCH_ROWS},
    error::{Error, Result},
    ids::{ConversationId, MessageId, PrincipalId},
    inbox::Delivery,
};

/// The number of executions that may meet a conflict before the batch fails.
const MAX_CONFLICTS: u32 = 3;

/// The decision on one send.
pub enum Decision {
    /// The message is durable.
    Stored(StoredMessage),
    /// The key was used before, for this message.
    Replay(Prior),
    /// The message must not be stored.
    Refused(Refusal),
    /// The conversation changed during the statement, or the key has just expired. The caller
    /// repeats the send.
    Undecided,
}

/// A message that has been stored.
pub struct StoredMessage {
    pub seq: i64,
    pub created_at: DateTime<Utc>,
    pub hop: i16,
    pub device_id: Option<String>,
    /// The inboxes that got it, with their new numbers.
    pub deliveries: Vec<Delivery>,
}

/// A message that was stored earlier under the same key.
pub struct Prior {
    pub id: MessageId,
    pub conversation: ConversationId,
    pub seq: i64,
    pub created_at: DateTime<Utc>,
    pub payload: String,
    pub client_message_id: Option<MessageId>,
}

/// The reason why a send was not stored.
pub enum Refusal {
    Credential,
    NotMember,
    RelationRevoked,
    Plaintext,
    UnknownReference,
    UnknownRef,
    TooManyHops,
    UnknownRecipient,
}

/// The messages that senders' keys were used for in the last 24 hours: at most one for each send,
/// which `n` names, from 1. Older keys are free again.
///
/// The earlier commit may have become visible without its standby, in a restart of Postgres. So this
/// transaction writes for each message that it finds, and waits for the standby itself.
const PRIORS: &str = "-- messages.priors
with item as (
    select sender_id, key, n::int4 as n from unnest($1::uuid[], $2::uuid[]) with ordinality as one (sender_id, key, n)
), freed as (
    delete from idempotency k using item
    where k.sender_id = item.sender_id and k.key = item.key and k.created_at <= app_now() - interval '24 hours'
)
select item.n, m.message_id, m.conversation_id, m.seq, m.created_at, m.payload, m.client_message_id,
    pg_logical_emit_message(true, 'blindpipe.replay', '')
from item
join idempotency k on k.sender_id = item.sender_id and k.key = item.key and k.created_at > app_now() - interval '24 hours'
join message m on m.conversation_id = k.conversation_id and m.seq = k.seq";

/// Begins a transaction that locks the conversations of a batch. A statement in it finds none of
/// them changed.
pub async fn lock(db: &Db, batch: &[PendingSend]) -> Result<Tx> {
    let tx = db.begin("messages.send").await?;
    let stmt = tx.prepare_cached(LOCK).await?;
    let conversations: Vec<ConversationId> =
        batch.iter().map(|send| send.request.conversation).collect();
    tx.execute(&stmt, &[&conversations]).await?;
    Ok(tx)
}

/// The rows of a batch that other transactions hold.
#[derive(Default)]
pub struct Locks {
    /// The conversations that are locked, or have a member whose inbox is.
    pub conversations: HashSet<ConversationId>,
    /// The locked inboxes.
    pub inboxes: Vec<PrincipalId>,
}

/// Looks for the rows of these conversations that other transactions hold. Takes no lock.
pub async fn locks(db: &Db, conversations: &[ConversationId]) -> Result<Locks> {
    let client = db.read().await?;
    let stmt = client.prepare_cached(LOCKS).await?;
    let rows = client.query(&stmt, &[&conversations]).await?;
    let inboxes: HashSet<PrincipalId> = rows
        .iter()
        .filter_map(|row| row.get("principal_id"))
        .collect();
    Ok(Locks {
        conversations: rows.iter().map(|row| row.get("conversation_id")).collect(),
        inboxes: inboxes.into_iter().collect(),
    })
}

/// Those of the conversations that have one of these members.
pub async fn with_members(
    db: &Db,
    conversations: &[ConversationId],
    members: &[PrincipalId],
) -> Result<HashSet<ConversationId>> {
    let client = db.read().await?;
    let stmt = client
        .prepare_cached(
            "-- messages.with_members
            select distinct conversation_id from member where conversation_id = any($1) and principal_id = any($2)",
        )
        .await?;
    let rows = client.query(&stmt, &[&conversations, &members]).await?;
    Ok(rows.iter().map(|row| row.get("conversation_id")).collect())
}

/// Decides and stores a batch in one round trip: in the transaction that [`lock`] began, or in one
/// of its own.
///
/// An error leaves nothing stored, unless the connection broke during the commit. That outcome is
/// unknown; the sender's own id makes the retry safe.
pub async fn commit(
    db: &Db,
    batch: &[PendingSend],
    mut locked: Option<Tx>,
) -> Result<Vec<Decision>> {
    let columns = Columns::of(batch);
    let mut conflicts = 0;
    let rows = loop {
        match execute(db, &columns, locked.take()).await {
            Err(error) if conflicts < MAX_CONFLICTS && is_write_conflict(&error) => conflicts += 1,
            outcome => break outcome?,
        }
    };
    let mut decisions = statement::decode(batch, &rows);
    let open = |decision: &Decision| {
        !matches!(
            decision,
            Decision::Stored(_) | Decision::Refused(Refusal::Credential)
        )
    };
    let repeats = batch.iter().zip(&mut decisions);
    let repeats =
        repeats.filter(|(send, decision)| send.request.draft.key.is_some() && open(decision));
    look_for_priors(db, repeats.collect()).await;
    Ok(decisions)
}

/// Stores the tokens of those messages of a batch that were stored.
const PUT_TOKENS: &str = "-- messages.put_tokens
insert into message_token (conversation_id, seq, token)
select m.conversation_id, m.seq, t.token
from unnest($1::uuid[], $2::uuid[], $3::text[]) as t (conversation_id, message_id, token)
join message m using (conversation_id, message_id)";

/// Stores for each message that a batch refers to which of its messages does.
const PUT_REFS: &str = "-- messages.put_refs
insert into message_ref (conversation_id, referred_seq, seq)
select m.conversation_id, referred.seq, m.seq
from unnest($1::uuid[], $2::uuid[]) as one (conversation_id, message_id)
join message m using (conversation_id, message_id)
cross join unnest(m.refs) as ref (message_id)
join message referred on referred.conversation_id = one.conversation_id and referred.message_id = ref.message_id";

/// The statement, and the rows by which its messages are found, in the same transaction. Few
/// batches have any.
async fn execute_findable(db: &Db, columns: &Columns<'_>, locked: Option<Tx>) -> Result<Vec<Row>> {
    let tx = match locked {
        Some(tx) => tx,
        None => db.begin("messages.send").await?,
    };
    let stmt = tx.prepare_cached(columns.statement()).await?;
    let rows = tx.query(&stmt, &columns.params()).await?;
    put_findable(&tx, columns).await?;
    tx.commit().await?;
    Ok(rows)
}

/// Stores the tokens and the references of messages that are stored.
async fn put_findable(tx: &Tx, columns: &Columns<'_>) -> Result<()> {
    if let Some(tokens) = columns.tokens() {
        let params: [&(dyn ToSql + Sync); 3] =
            [&tokens.conversations, &tokens.messages, &tokens.tokens];
        tx.execute(PUT_TOKENS, &params).await?;
    }
    if let Some((conversations, messages)) = columns.referring() {
        tx.execute(PUT_REFS, &[&conversations, &messages]).await?;
    }
    Ok(())
}

async fn execute(db: &Db, columns: &Columns<'_>, locked: Option<Tx>) -> Result<Vec<Row>> {
    if columns.are_findable() {
        return execute_findable(db, columns, locked).await;
    }
    let params = columns.params();
    if let Some(tx) = locked {
        let stmt = tx.prepare_cached(columns.statement()).await?;
        return tx.query_and_commit(&stmt, &params).await;
    }
    let client = db.write().await?;
    let stmt = client.prepare_cached(columns.statement()).await?;
    // A single statement is a transaction, so its answer comes after its commit.
    client.query(&stmt, &params).await
}

/// Takes a conversation's lock in a transaction of the caller's.
pub async fn lock_in(tx: &Tx, conversation: ConversationId) -> Result<()> {
    tx.execute(LOCK, &[&[conversation].as_slice()]).await?;
    Ok(())
}

/// Decides and stores a single send in a transaction of the caller's.
pub async fn decide_in(tx: &Tx, send: &PendingSend) -> Result<Decision> {
    let batch = std::slice::from_ref(send);
    let columns = Columns::of(batch);
    let stmt = tx.prepare_cached(columns.statement()).await?;
    let rows = tx.query(&stmt, &columns.params()).await?;
    let decision = statement::decode(batch, &rows).pop();
    match decision.unwrap_or(Decision::Undecided) {
        Decision::Undecided => {
            let prior = find_prior(tx, &send.request).await?;
            Ok(prior.map_or(Decision::Undecided, Decision::Replay))
        }
        decision => {
            put_findable(tx, &columns).await?;
            Ok(decision)
        }
    }
}

/// The message that a sender's own id was used for.
pub async fn find_prior(tx: &Tx, request: &SendRequest) -> Result<Option<Prior>> {
    let Some(key) = request.draft.key else {
        return Ok(None);
    };
    let found = priors_in(tx, &[request.sender.id()], &[Some(key)]).await?;
    Ok(found.into_iter().next().map(|(_, prior)| prior))
}

/// Whether another transaction wrote the same rows at the same time. The next try may succeed.
pub fn is_write_conflict(error: &Error) -> bool {
    error.is_conflict() || error.violates("idempotency_pkey")
}

/// Makes the decisions on repeated sends replays, also for senders that are no longer members.
async fn look_for_priors(db: &Db, mut repeats: Vec<(&PendingSend, &mut Decision)>) {
    if repeats.is_empty() {
        return;
    }
    let sends: Vec<&PendingSend> = repeats.iter().map(|(send, _)| *send).collect();
    match priors(db, &sends).await {
        Ok(found) => {
            for (n, prior) in found {
                if let Some((_, decision)) = repeats.get_mut(n) {
                    **decision = Decision::Replay(prior);
                }
            }
        }
        // The rest of the batch is stored. Only these sends are tried again.
        Err(_) => {
            for (_, decision) in repeats {
                *decision = Decision::Undecided;
            }
        }
    }
}

/// The messages of sends whose keys were used before, each with the place of its send.
async fn priors(db: &Db, sends: &[&PendingSend]) -> Result<Vec<(usize, Prior)>> {
    let senders: Vec<PrincipalId> = sends.iter().map(|send| send.request.sender.id()).collect();
    let keys: Vec<Option<Uuid>> = sends.iter().map(|send| send.request.draft.key).collect();
    priors_in(&db.write().await?, &senders, &keys).await
}

async fn priors_in(
    client: &Conn,
    senders: &[PrincipalId],
    keys: &[Option<Uuid>],
) -> Result<Vec<(usize, Prior)>> {
    let stmt = client.prepare_cached(PRIORS).await?;
    let rows = client.query(&stmt, &[&senders, &keys]).await?;
    let found = rows.iter().filter_map(|row| {
        let n = statement::position(row.get("n"))?;
        let prior = Prior {
            id: row.get("message_id"),
            conversation: row.get("conversation_id"),
            seq: row.get("seq"),
            created_at: row.get("created_at"),
            payload: row.get("payload"),
            client_message_id: row.get("client_message_id"),
        };
        Some((n, prior))
    });
    Ok(found.collect())
}

/// Deletes keys that are older than their window.
pub async fn forget_keys(db: &Db) -> Result<bool> {
    let client = db.write().await?;
    let stmt = client
        .prepare_cached(
            "-- messages.forget_keys
            delete from idempotency where created_at = any(array(
                select created_at from idempotency where created_at < app_now() - interval '25 hours'
                order by created_at limit $1
            ))",
        )
        .await?;
    Ok(client.execute(&stmt, &[&BATCH_ROWS]).await? > 0)
}
