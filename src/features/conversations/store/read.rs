//! Reads of conversations: one, and the caller's list.
//!
//! Why: ADR 43.

use blindpipe_protocol::conversations::Role;
use tokio_postgres::Row;

use crate::{
    db::Conn,
    error::Result,
    features::{conversations::Conversation, relations::Relation},
    ids::{ConversationId, Principal, RelationId},
};

/// The caller's conversations, latest activity first: ordered by the id of the last message, or of
/// the conversation where there is none. The cursor is such an id. It is compared, not looked up:
/// ids rise with time.
///
/// Cost: `member_activity` has an upper bound of each conversation's activity, at most 60 s above it.
/// A page reads its own conversations twice, and the others that were active in the 60 s after its
/// last one.
pub async fn page(
    client: &Conn,
    viewer: Principal,
    cursor: Option<ConversationId>,
    rows: i64,
) -> Result<Vec<Conversation>> {
    show(client, Some(viewer), Which::Page { cursor, rows }).await
}

/// Conversations without their members. With a viewer, they hold the viewer's own view.
pub async fn view(
    client: &Conn,
    viewer: Option<Principal>,
    ids: &[ConversationId],
) -> Result<Vec<Conversation>> {
    show(client, viewer, Which::These(ids)).await
}

/// Selects conversations.
enum Which<'a> {
    These(&'a [ConversationId]),
    /// The viewer's next ones after an id.
    Page {
        cursor: Option<ConversationId>,
        rows: i64,
    },
}

/// Returns them by latest activity. A single snapshot selects and reads them: a conversation that
/// is left in between would end the list early.
async fn show(
    client: &Conn,
    viewer: Option<Principal>,
    which: Which<'_>,
) -> Result<Vec<Conversation>> {
    let (these, cursor, rows) = match which {
        Which::These(ids) => (Some(ids), None, 0),
        Which::Page { cursor, rows } => (None, cursor, rows),
    };
    let viewer = viewer.map(Principal::id);
    let rows = client
        .query(
            "-- conversations.show
            with before as materialized (
                select coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') as activity,
                    coalesce(activity_ceiling($3::uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff') as activity_until
            ), candidate as not materialized (
                select a.activity_until, own.* from member_activity a cross join lateral (
                    select m.conversation_id, coalesce(c.last_message_id, c.conversation_id) as activity
                    from active_member m join conversation c using (conversation_id)
                    where m.conversation_id = a.conversation_id and m.principal_id = a.principal_id offset 0
                ) own
                where a.principal_id = $2 and a.activity_until <= (select activity_until from before)
                    and own.activity < (select activity from before)
            ), nearest as materialized (
                select activity from candidate order by activity_until desc limit $4
            ), page as materialized (
                -- There are enough whose activity is at least the earliest of `nearest`. Any of these has its bound above it.
                select conversation_id from candidate where activity_until >= (select activity from nearest order by activity limit 1)
                order by activity desc limit $4
            )
            select c.conversation_id, c.kind, c.title, c.created_by, c.created_at, c.encryption, c.epoch, c.rotation_required,
                   c.last_message_id, c.last_activity_at,
                   (select count(*) from member x where x.conversation_id = c.conversation_id) as member_count,
                   me.role as my_role, unread.n as unread_count,
                   r.relation_id, r.user_id, r.agent_id, r.state as relation_state, r.created_at as relation_created_at,
                   r.revoked_at, r.purge_at
            from conversation c
            left join lateral (
                -- A row of its own for each conversation. The caller may be a member of 100,000.
                select * from member m where m.conversation_id = c.conversation_id and m.principal_id = $2 offset 0
            ) me on true
            left join relation mine on mine.relation_id = me.relation_id
            left join member its on its.conversation_id = c.conversation_id and its.principal_kind = 'agent' and c.kind = 'agent'
            left join relation r on r.relation_id = its.relation_id
            cross join lateral (
                select count(*) as n from (
                    select m.sender_id, m.recipients, m.seq from message m
                    where m.conversation_id = c.conversation_id and m.seq > greatest(me.read_seq, me.from_seq)
                    order by m.seq desc limit 1000
                ) latest
                where latest.sender_id <> me.principal_id
                    and (me.visibility = 'all' and latest.seq > me.all_from_seq or me.principal_id::text = any(latest.recipients))
            ) unread
            where c.conversation_id = any(coalesce($1::uuid[], array(select conversation_id from page)))
                and ($2::uuid is null or me.principal_id is not null and mine.state is distinct from 'revoked')
            order by coalesce(c.last_message_id, c.conversation_id) desc",
            &[&these, &viewer, &cursor, &rows],
        )
        .await?;
    Ok(rows.iter().map(conversation).collect())
}

fn conversation(row: &Row) -> Conversation {
    let relation = row
        .get::<_, Option<RelationId>>("relation_id")
        .map(|relation_id| Relation {
            relation_id,
            user_id: row.get("user_id"),
            agent_id: row.get("agent_id"),
            state: row.get("relation_state"),
            created_at: row.get("relation_created_at"),
            revoked_at: row.get("revoked_at"),
            purge_at: row.get("purge_at"),
        });
    let my_role: Option<Role> = row.get("my_role");
    Conversation {
        conversation_id: row.get("conversation_id"),
        r#type: row.get("kind"),
        title: row.get("title"),
        created_by: row.get("created_by"),
        created_at: row.get("created_at"),
        encryption: row.get("encryption"),
        epoch: row.get("epoch"),
        rotation_required: row.get("rotation_required"),
        member_count: row.get("member_count"),
        members: None,
        last_message_id: row.get("last_message_id"),
        last_activity_at: row.get("last_activity_at"),
        unread_count: my_role.map(|_| row.get("unread_count")),
        my_role,
        relation,
    }
}
