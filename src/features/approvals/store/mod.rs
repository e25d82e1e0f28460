//! The rows of approvals: how they are made, decided, reviewed and read.

mod decisions;
mod lists;
mod purge;
mod requests;
mod review;

use std::collections::HashMap;

use blindpipe_protocol::{
    approvals::{Approval, SignedDecision},
    text::{Key32, KeyId, Signature},
};
use tokio_postgres::Row;

pub use self::{
    decisions::{decide, withdraw},
    lists::{find, list, log_read, record},
    purge::purge,
    requests::request,
    review::{MAX_BATCH_APPROVALS, of_member, of_relation, overdue, review},
};
use crate::{
    db::Conn,
    error::{Code, Error, Result},
    features::{conversations, messages},
    ids::{ConversationId, MessageId, Principal, UserId},
    work::Tx,
};

/// Locks an approval and its conversation, and reads it. The caller has a right to it.
async fn lock(tx: &Tx, id: MessageId, conversation: ConversationId) -> Result<Approval> {
    messages::lock(tx, conversation).await?;
    tx.execute(
        "-- approvals.lock
        select 1 from approval where approval_id = $1 for update",
        &[&id],
    )
    .await?;
    // A separate statement, so that it sees everything committed before the lock.
    read_one(tx, id).await
}

async fn read_one(client: &Conn, id: MessageId) -> Result<Approval> {
    let found = read(client, &[id]).await?.pop();
    found.ok_or_else(|| Code::NotFound.into())
}

/// Reads approvals, newest first.
async fn read(client: &Conn, ids: &[MessageId]) -> Result<Vec<Approval>> {
    let rows = client
        .query(
            "-- approvals.read
            select approval_id, conversation_id, agent_id, seq, kind, digest, quorum, deny_quorum, state, reason, created_at,
                expires_at, closed_at
            from approval where approval_id = any($1) order by approval_id desc",
            &[&ids],
        )
        .await?;
    let mut asked = asked(client, ids).await?;
    let approvals = rows.iter().map(|row| {
        let id: MessageId = row.get("approval_id");
        approval(row, asked.remove(&id).unwrap_or_default())
    });
    approvals.collect()
}

/// The people of an approval, by id, and their decisions as they came.
#[derive(Default)]
struct AskedPeople {
    users: Vec<UserId>,
    decisions: Vec<SignedDecision>,
}

async fn asked(client: &Conn, ids: &[MessageId]) -> Result<HashMap<MessageId, AskedPeople>> {
    let rows = client
        .query(
            "-- approvals.asked
            select approval_id, user_id, decision, decided_at, answer_digest, key_id, signature, message_id
            from approval_asked where approval_id = any($1) order by recorded_at, user_id",
            &[&ids],
        )
        .await?;
    let mut all: HashMap<MessageId, AskedPeople> = HashMap::new();
    for row in &rows {
        let one = all.entry(row.get("approval_id")).or_default();
        one.users.push(row.get("user_id"));
        if row.get::<_, Option<&str>>("decision").is_some() {
            one.decisions.push(decision(row)?);
        }
    }
    all.values_mut().for_each(|one| one.users.sort_unstable());
    Ok(all)
}

fn decision(row: &Row) -> Result<SignedDecision> {
    let answer: Option<&[u8]> = row.get("answer_digest");
    Ok(SignedDecision {
        user_id: row.get("user_id"),
        decision: row.get("decision"),
        decided_at: row.get("decided_at"),
        answer_digest: answer.map(digest).transpose()?,
        key_id: KeyId(row.get("key_id")),
        signature: Signature(array(row.get("signature"))?),
        message_id: row.get("message_id"),
    })
}

fn approval(row: &Row, of: AskedPeople) -> Result<Approval> {
    Ok(Approval {
        approval_id: row.get("approval_id"),
        conversation_id: row.get("conversation_id"),
        agent_id: row.get("agent_id"),
        seq: row.get("seq"),
        kind: row.get("kind"),
        digest: digest(row.get("digest"))?,
        asked: of.users,
        quorum: row.get("quorum"),
        deny_quorum: row.get("deny_quorum"),
        decisions: of.decisions,
        state: row.get("state"),
        reason: row.get("reason"),
        created_at: row.get("created_at"),
        expires_at: row.get("expires_at"),
        closed_at: row.get("closed_at"),
    })
}

fn digest(bytes: &[u8]) -> Result<Key32> {
    array(bytes).map(Key32)
}

/// A column of a length that the table checks.
fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
    <[u8; N]>::try_from(bytes).map_err(|error| Error::internal(Code::InternalError, error))
}

/// The members who are users. The conversation is locked.
async fn users(tx: &Tx, conversation: ConversationId) -> Result<Vec<UserId>> {
    let members = conversations::recipients(tx, conversation).await?;
    let users = members.into_iter().filter_map(|member| match member {
        Principal::User(user) => Some(user),
        Principal::Agent(_) => None,
    });
    Ok(users.collect())
}
