//! The common part of all changes to a conversation: its lock, its members, its events.

mod asked;
mod change;
mod leave;
mod marks;
mod open;
mod read;
mod roles;

use blindpipe_protocol::conversations::{ConversationKind, Role};
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

pub use self::{
    asked::{AskedUser, asked_user},
    change::{Change, change},
    leave::{MembershipScope, leave_next, remove_member},
    marks::{ReadMark, conversations_with_untold_marks, read_up_to, tell_marks},
    open::{NewGroup, OpenedConversation, exists, open_agent, open_direct, open_group},
    read::{page, view},
    roles::{AgentMembership, place_agent, renew_agent, set_role},
};
use super::{Conversation, Member};
use crate::{
    db::{Conn, Db},
    error::{Code, Result},
    events::Event,
    ids::{ConversationId, Principal, PrincipalId, PrincipalKind, RelationId},
    planted::PlantedBug,
    work::Tx,
};

/// A conversation that is locked until the transaction ends, and the caller's role in it.
pub struct Place {
    pub kind: ConversationKind,
    pub epoch: i32,
    pub role: Role,
    pub rotation_required: bool,
}

impl Place {
    /// Whether the caller may manage it. A group has admins; the two members of a pair are equal.
    pub fn is_admin(&self) -> bool {
        self.kind != ConversationKind::Group || self.role.is_admin()
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

/// Locks a conversation of the caller's. 404 if the caller is no member: nobody else may hold its
/// senders up.
pub async fn lock(tx: &Tx, id: ConversationId, caller: Principal) -> Result<Place> {
    tx.query_opt(
        "-- conversations.lock_own
        select 1 from conversation c where c.conversation_id = $1
            and exists (select from member m where m.conversation_id = $1 and m.principal_id = $2)
        for update of c",
        &[&id, &caller.id()],
    )
    .await?
    .ok_or(Code::NotFound)?;
    // A separate statement, so that it sees everything committed before the lock.
    let row = tx
        .query_opt(
            "-- conversations.place
            select c.kind, c.epoch, m.role, c.rotation_required from active_member m join conversation c using (conversation_id)
            where m.conversation_id = $1 and m.principal_id = $2",
            &[&id, &caller.id()],
        )
        .await?
        .ok_or(Code::NotFound)?;
    Ok(Place {
        kind: row.get("kind"),
        epoch: row.get("epoch"),
        role: row.get("role"),
        rotation_required: row.get("rotation_required"),
    })
}

/// Whether the caller may manage this group. 404 if it is no group of theirs. It serves limits of a
/// group; the lock repeats the check.
pub async fn is_admin(client: &Conn, id: ConversationId, caller: Principal) -> Result<bool> {
    let row = client
        .query_opt(
            "-- conversations.is_admin
            select m.role in ('owner', 'admin') as is_admin from member m join conversation c using (conversation_id)
            where m.conversation_id = $1 and m.principal_id = $2 and c.kind = 'group'",
            &[&id, &caller.id()],
        )
        .await?
        .ok_or(Code::NotFound)?;
    Ok(row.get("is_admin"))
}

/// The type of this conversation. 404 if the caller is no member.
pub async fn kind(db: &Db, id: ConversationId, caller: Principal) -> Result<ConversationKind> {
    let client = db.read().await?;
    Ok(client
        .query_opt(
            "-- conversations.kind
            select c.kind from active_member m join conversation c using (conversation_id)
            where m.conversation_id = $1 and m.principal_id = $2",
            &[&id, &caller.id()],
        )
        .await?
        .ok_or(Code::NotFound)?
        .get("kind"))
}

/// The recipients of a conversation's events. An agent whose relation has ended gets none.
pub async fn recipients(tx: &Tx, id: ConversationId) -> Result<Vec<Principal>> {
    let rows = tx
        .query(
            "-- conversations.recipients
            select principal_kind, principal_id from active_member where conversation_id = $1 order by principal_id",
            &[&id],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Principal::from_row(row.get("principal_kind"), row.get("principal_id")))
        .collect())
}

const ADD_MEMBER: &str = "-- conversations.add_member
insert into member (conversation_id, principal_id, principal_kind, role, relation_id, from_seq)
select conversation_id, who.id, who.kind, $4, $5, last_seq
from conversation, unnest($2::uuid[], $3::text[]) as who (id, kind) where conversation_id = $1";

/// Adds a member to a conversation, which is locked. The member sees only later messages.
pub async fn add_member(
    tx: &Tx,
    conversation: ConversationId,
    who: &[Principal],
    role: Role,
    relation: Option<RelationId>,
) -> Result<()> {
    let ids: Vec<PrincipalId> = who.iter().map(|who| who.id()).collect();
    let kinds: Vec<PrincipalKind> = who.iter().map(|who| who.kind()).collect();
    let statement: &str = match PlantedBug::AbsenceIsSeen.is_planted() {
        true => &ADD_MEMBER.replace("$5, last_seq", "$5, 0"),
        false => ADD_MEMBER,
    };
    tx.execute(statement, &[&conversation, &ids, &kinds, &role, &relation])
        .await?;
    Ok(())
}

/// Marks that the members changed. A send that read them before finds its conversation stale.
pub async fn touch(tx: &Tx, id: ConversationId, rotation_required: bool) -> Result<()> {
    tx.execute(
        "-- conversations.touch
        update conversation set rotation_required = rotation_required or $2, rules_version = rules_version + 1 where conversation_id = $1",
        &[&id, &rotation_required],
    )
    .await?;
    Ok(())
}

/// Requires another key, if the members have one that must not count any more, and tells them.
pub async fn require_rotation(tx: &Tx, id: ConversationId) -> Result<()> {
    let required = tx
        .execute(
            "-- conversations.require_rotation
            update conversation set rotation_required = true
            where conversation_id = $1 and epoch > 0 and not rotation_required",
            &[&id],
        )
        .await?
        > 0;
    if required {
        updated(tx, id).await?;
    }
    Ok(())
}

/// Requires another key in place of that of `epoch`, if it is still the key, and tells the members.
pub async fn require_rotation_of(tx: &Tx, id: ConversationId, epoch: i32) -> Result<()> {
    let required = tx
        .execute(
            "-- conversations.require_rotation_of
            update conversation set rotation_required = true
            where conversation_id = $1 and epoch = $2 and not rotation_required",
            &[&id, &epoch],
        )
        .await?
        > 0;
    if required {
        updated(tx, id).await?;
    }
    Ok(())
}

/// Makes the keys of `epoch` those of the conversation. Returns the time.
pub async fn begin_epoch(tx: &Tx, id: ConversationId, epoch: i32) -> Result<DateTime<Utc>> {
    let row = tx
        .query_one(
            "-- conversations.begin_epoch
            update conversation set epoch = $2, rotation_required = false where conversation_id = $1
            returning app_now() as rotated_at",
            &[&id, &epoch],
        )
        .await?;
    Ok(row.get("rotated_at"))
}

/// Reads one member.
pub async fn member(tx: &Tx, id: ConversationId, who: Principal) -> Result<Option<Member>> {
    Ok(members(tx, id, Some(&[who])).await?.pop())
}

/// Reads all members or some of them, in the order of joining.
pub async fn members(
    client: &Conn,
    id: ConversationId,
    only: Option<&[Principal]>,
) -> Result<Vec<Member>> {
    let only: Option<Vec<PrincipalId>> = only.map(|some| some.iter().map(|who| who.id()).collect());
    let rows = client
        .query(
            "-- conversations.members
            select m.principal_kind, m.principal_id, coalesce(u.display_name, a.display_name, '') as display_name, m.role,
                   m.visibility, m.joined_at
            from member m
            left join user_account u on u.user_id = m.principal_id
            left join agent a on a.agent_id = m.principal_id
            where m.conversation_id = $1 and ($2::uuid[] is null or m.principal_id = any($2))
            order by m.joined_at, m.principal_kind = 'agent', m.principal_id",
            &[&id, &only],
        )
        .await?;
    let member = |row: &Row| {
        let who = Principal::from_row(row.get("principal_kind"), row.get("principal_id"));
        Member {
            principal_type: who.kind(),
            principal_id: who,
            display_name: row.get("display_name"),
            role: row.get("role"),
            visibility: (who.kind() == PrincipalKind::Agent).then(|| row.get("visibility")),
            joined_at: row.get("joined_at"),
        }
    };
    Ok(rows.iter().map(member).collect())
}

/// A conversation for an event to all its members. A group comes without its members, who may be
/// many.
pub async fn public(tx: &Tx, id: ConversationId) -> Result<Conversation> {
    let mut conversation = view(tx, None, &[id]).await?.pop().ok_or(Code::NotFound)?;
    if conversation.r#type != ConversationKind::Group {
        conversation.members = Some(members(tx, id, None).await?);
    }
    Ok(conversation)
}

/// Publishes the current state of the conversation to the members.
pub async fn updated(tx: &Tx, id: ConversationId) -> Result<()> {
    emit_whole(tx, id, Event::ConversationUpdated).await
}

async fn emit_whole(
    tx: &Tx,
    id: ConversationId,
    event: impl FnOnce(Box<Conversation>) -> Event,
) -> Result<()> {
    let to = recipients(tx, id).await?;
    let conversation = public(tx, id).await?;
    tx.emit(event(Box::new(conversation)), Some(id), to)
}

/// A conversation as one of its members sees it, with all members. `None` for others.
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
