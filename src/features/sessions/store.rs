use blindpipe_protocol::sessions::{ChangeKind, Session, SessionChange};
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use crate::{
    auth::user::User,
    db::{Conn, Db},
    error::{Code, Result},
    http::page,
    ids::{AgentId, ConversationId, InstanceId, PasskeyId, RelationId, SessionId, TokenId, UserId},
    work::Tx,
};

/// The most changes of a session that are read at once.
const MAX_CHANGES: i64 = 1000;

/// A page of a user's sessions, newest first.
pub async fn list(
    db: &Db,
    user: &User,
    cursor: Option<SessionId>,
    rows: i64,
) -> Result<Vec<Session>> {
    let client = db.read().await?;
    let known = "-- sessions.cursor
        select 1 from session where session_id = $1 and user_id = $2";
    page::must_be_listed(&client, known, cursor, user.id).await?;
    let rows = client
        .query(
            "-- sessions.list
            select s.session_id, s.device_id, d.display_name, d.platform, s.created_at, s.revoked_at,
                (select count(*) from session_change c where c.user_id = $1 and c.session_id = s.session_id) as changes
            from session s join device d on d.user_id = s.user_id and d.device_id = s.device_id
            where s.user_id = $1 and ($2::uuid is null or s.session_id < $2)
            order by s.session_id desc limit $3",
            &[&user.id, &cursor, &rows],
        )
        .await?;
    let shown = rows.iter().map(|row| Session {
        session_id: row.get("session_id"),
        device_id: row.get("device_id"),
        display_name: row.get("display_name"),
        platform: row.get("platform"),
        created_at: row.get("created_at"),
        revoked_at: row.get("revoked_at"),
        current: row.get::<_, SessionId>("session_id") == user.session,
        changes: row.get("changes"),
    });
    Ok(shown.collect())
}

/// Errors: `NOT_FOUND` for a session that is not the user's, or is forgotten.
pub async fn must_be_of(client: &Conn, user: UserId, session: SessionId) -> Result<()> {
    client
        .query_opt(
            "-- sessions.find
            select 1 from session where session_id = $1 and user_id = $2",
            &[&session, &user],
        )
        .await?
        .ok_or(Code::NotFound)?;
    Ok(())
}

/// A thing that a session has added.
pub enum Change {
    Agent(AgentId),
    Token(TokenId, AgentId),
    Webhook(AgentId),
    Relation(RelationId),
    Instance(ConversationId, InstanceId),
    Passkey(PasskeyId),
    Share(Vec<u8>),
}

impl Change {
    fn of(row: &Row) -> Self {
        match row.get("kind") {
            ChangeKind::Agent => Change::Agent(row.get("agent_id")),
            ChangeKind::Token => Change::Token(row.get("change_id"), row.get("agent_id")),
            ChangeKind::Webhook => Change::Webhook(row.get("agent_id")),
            ChangeKind::Relation => Change::Relation(row.get("change_id")),
            ChangeKind::Instance => {
                Change::Instance(row.get("conversation_id"), row.get("change_id"))
            }
            ChangeKind::Passkey => Change::Passkey(row.get("change_id")),
            ChangeKind::Share => Change::Share(row.get("share_hash")),
        }
    }

    fn id(&self) -> String {
        match self {
            Change::Agent(id) | Change::Webhook(id) => id.to_string(),
            Change::Token(id, _) => id.to_string(),
            Change::Relation(id) => id.to_string(),
            Change::Instance(_, id) => id.to_string(),
            Change::Passkey(id) => id.to_string(),
            Change::Share(hash) => base16ct::lower::encode_string(hash),
        }
    }
}

/// A session's additions that are still there, newest first.
pub async fn changes(
    client: &Conn,
    user: UserId,
    session: SessionId,
) -> Result<Vec<(Change, SessionChange)>> {
    let rows = client
        .query(
            "-- sessions.changes
            select kind, agent_id, change_id, conversation_id, share_hash, name, made_at from session_change
            where user_id = $1 and session_id = $2
            order by made_at desc, kind, change_id, share_hash limit $3",
            &[&user, &session, &MAX_CHANGES],
        )
        .await?;
    let changes = rows.iter().map(|row| {
        let change = Change::of(row);
        let shown = SessionChange {
            kind: row.get("kind"),
            id: change.id(),
            name: row.get("name"),
            at: row.get::<_, DateTime<Utc>>("made_at").into(),
        };
        (change, shown)
    });
    Ok(changes.collect())
}

/// Nothing of the user's begins or ends meanwhile: every session that adds something holds this row.
pub async fn lock_user(tx: &Tx, user: UserId) -> Result<()> {
    tx.execute(
        "-- sessions.lock_user
        select 1 from user_account where user_id = $1 for update",
        &[&user],
    )
    .await?;
    Ok(())
}

/// Locks these groups, and the conversations of these relations, in their order.
pub async fn lock_conversations(
    tx: &Tx,
    groups: &[ConversationId],
    relations: &[RelationId],
) -> Result<()> {
    tx.execute(
        "-- sessions.lock_conversations
        select 1 from conversation where conversation_id = any(array(
            select unnest($1::uuid[]) union select conversation_id from member where relation_id = any($2)))
        order by conversation_id for update",
        &[&groups, &relations],
    )
    .await?;
    Ok(())
}
