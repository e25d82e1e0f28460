//! What is common to all that changes a conversation: its lock, its members, what they are told.

mod change;
mod leave;
mod open;
mod read;

use tokio_postgres::Row;
use uuid::Uuid;

pub use self::{
    change::{Change, change, read_up_to},
    leave::{MembershipScope, leave_next, remove_member},
    open::{NewGroup, Opened, open_agent, open_direct, open_group},
    read::{page, view},
};
use super::{Conversation, Member};
use crate::{
    db::{Conn, Db},
    error::{Code, Result},
    events::EventKind,
    ids::{ConversationId, Principal, RelationId},
    work::Tx,
};

/// A conversation that is locked until the transaction ends, and the caller's place in it.
pub struct Place {
    pub kind: String,
    pub epoch: i32,
    pub role: String,
    pub rotation_required: bool,
}

impl Place {
    /// Whether the caller may manage it: a group has admins, the two of a pair are equal.
    pub fn is_admin(&self) -> bool {
        self.kind != "group" || matches!(self.role.as_str(), "owner" | "admin")
    }
}

async fn lock_row(tx: &Tx, id: ConversationId) -> Result<()> {
    tx.execute(
        "-- conversations.lock
        select 1 from conversation where conversation_id = $1 for update",
        &[&id],
    )
    .await?;
    Ok(())
}

/// Locks a conversation of the caller's; 404 if it is none.
pub async fn lock(tx: &Tx, id: ConversationId, caller: Principal) -> Result<Place> {
    lock_row(tx, id).await?;
    // A statement of its own, so that it sees what was committed under the lock.
    let row = tx
        .query_opt(
            "-- conversations.place
            select c.kind, c.epoch, m.role, c.rotation_required from member m join conversation c using (conversation_id)
            left join relation r on r.relation_id = m.relation_id
            where m.conversation_id = $1 and m.principal_id = $2 and r.state is distinct from 'revoked'",
            &[&id, &caller.id()],
        )
        .await?
        .ok_or(Code::NotFound)?;
    Ok(Place {
        kind: row.get(0),
        epoch: row.get(1),
        role: row.get(2),
        rotation_required: row.get(3),
    })
}

/// Whether the caller may manage this group; 404 if it is no group of theirs. For budgets that are the group's: the
/// answer is asked for again under the lock.
pub async fn is_admin(client: &Conn, id: ConversationId, caller: Principal) -> Result<bool> {
    let row = client
        .query_opt(
            "-- conversations.is_admin
            select m.role in ('owner', 'admin') from member m join conversation c using (conversation_id)
            where m.conversation_id = $1 and m.principal_id = $2 and c.kind = 'group'",
            &[&id, &caller.id()],
        )
        .await?
        .ok_or(Code::NotFound)?;
    Ok(row.get(0))
}

/// What kind of conversation this is; 404 to who is no member of it.
pub async fn kind(db: &Db, id: ConversationId, caller: Principal) -> Result<String> {
    let client = db.read().await?;
    Ok(client
        .query_opt(
            "-- conversations.kind
            select c.kind from member m join conversation c using (conversation_id)
            left join relation r on r.relation_id = m.relation_id
            where m.conversation_id = $1 and m.principal_id = $2 and r.state is distinct from 'revoked'",
            &[&id, &caller.id()],
        )
        .await?
        .ok_or(Code::NotFound)?
        .get(0))
}

/// Who is told what happens in a conversation: an agent whose relation has ended hears nothing.
pub async fn recipients(tx: &Tx, id: ConversationId) -> Result<Vec<Principal>> {
    let rows = tx
        .query(
            "-- conversations.recipients
            select m.principal_kind, m.principal_id from member m left join relation r on r.relation_id = m.relation_id
            where m.conversation_id = $1 and r.state is distinct from 'revoked' order by m.principal_id",
            &[&id],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Principal::from_row(row.get(0), row.get(1)))
        .collect())
}

/// Puts someone into a conversation, which is locked. Who joins sees what comes from now on.
pub async fn add_member(
    tx: &Tx,
    conversation: ConversationId,
    who: &[Principal],
    role: &str,
    relation: Option<RelationId>,
) -> Result<()> {
    let ids: Vec<Uuid> = who.iter().map(|who| who.id()).collect();
    let kinds: Vec<&str> = who.iter().map(|who| who.kind()).collect();
    tx.execute(
        "-- conversations.add_member
        insert into member (conversation_id, principal_id, principal_kind, role, relation_id, from_seq)
        select conversation_id, who.id, who.kind, $4, $5, last_seq
        from conversation, unnest($2::uuid[], $3::text[]) as who (id, kind) where conversation_id = $1",
        &[&conversation, &ids, &kinds, &role, &relation],
    )
    .await?;
    Ok(())
}

/// Says that the members have changed: a send that has read them before finds its conversation stale.
pub async fn touch(tx: &Tx, id: ConversationId, rotation_required: bool) -> Result<()> {
    tx.execute(
        "-- conversations.touch
        update conversation set rotation_required = rotation_required or $2 where conversation_id = $1",
        &[&id, &rotation_required],
    )
    .await?;
    Ok(())
}

/// One member.
pub async fn member(tx: &Tx, id: ConversationId, who: Principal) -> Result<Option<Member>> {
    Ok(members(tx, id, Some(&[who])).await?.pop())
}

/// All members or some of them, in the order in which they joined.
pub async fn members(
    client: &Conn,
    id: ConversationId,
    only: Option<&[Principal]>,
) -> Result<Vec<Member>> {
    let only: Option<Vec<Uuid>> = only.map(|some| some.iter().map(|who| who.id()).collect());
    let rows = client
        .query(
            "-- conversations.members
            select m.principal_kind, m.principal_id, coalesce(u.display_name, a.display_name, ''), m.role, m.joined_at
            from member m
            left join user_account u on u.user_id = m.principal_id
            left join agent a on a.agent_id = m.principal_id
            where m.conversation_id = $1 and ($2::uuid[] is null or m.principal_id = any($2))
            order by m.joined_at, m.principal_kind = 'agent', m.principal_id",
            &[&id, &only],
        )
        .await?;
    let member = |row: &Row| {
        let who = Principal::from_row(row.get(0), row.get(1));
        Member {
            principal_type: who.kind(),
            principal_id: who,
            display_name: row.get(2),
            role: row.get(3),
            joined_at: row.get(4),
        }
    };
    Ok(rows.iter().map(member).collect())
}

/// A conversation as all its members are told of it: a group without its members, who may be many.
pub async fn public(tx: &Tx, id: ConversationId) -> Result<Conversation> {
    let mut conversation = view(tx, None, &[id]).await?.pop().ok_or(Code::NotFound)?;
    if conversation.r#type != "group" {
        conversation.members = Some(members(tx, id, None).await?);
    }
    Ok(conversation)
}

/// Tells the members what the conversation is now.
pub async fn updated(tx: &Tx, id: ConversationId) -> Result<()> {
    tell(tx, id, EventKind::ConversationUpdated).await
}

async fn tell(tx: &Tx, id: ConversationId, kind: EventKind) -> Result<()> {
    let to = recipients(tx, id).await?;
    let to = to.into_iter().map(Principal::id).collect();
    tx.emit(kind, Some(id), &public(tx, id).await?, to)
}

/// A conversation as one of its members sees it, with all of them; `None` to who is not.
pub async fn whole(
    client: &Conn,
    viewer: Principal,
    id: ConversationId,
) -> Result<Option<Conversation>> {
    let Some(mut conversation) = view(client, Some(viewer), &[id]).await?.pop() else {
        return Ok(None);
    };
    conversation.members = Some(members(client, id, None).await?);
    Ok(Some(conversation))
}
