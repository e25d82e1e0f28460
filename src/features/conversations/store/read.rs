use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use crate::{
    db::Conn,
    error::Result,
    features::{
        conversations::{Conversation, Mine},
        relations::Relation,
    },
    http::page,
    ids::{ConversationId, Principal, RelationId},
};

/// The caller's conversations, latest activity first. The cursor is the message that was the
/// last one of its conversation when it was seen, or the id of a conversation without any.
pub async fn page(
    client: &Conn,
    viewer: Principal,
    cursor: Option<ConversationId>,
    rows: i64,
) -> Result<Vec<Conversation>> {
    let mut after: Option<DateTime<Utc>> = None;
    if let Some(cursor) = cursor {
        let row = client
            .query_opt(
                "-- conversations.cursor
                select m.created_at from message m join member me using (conversation_id)
                where m.message_id = $2 and me.principal_id = $1
                union all
                select c.created_at from conversation c join member me using (conversation_id)
                where c.conversation_id = $2 and me.principal_id = $1",
                &[&viewer.id(), &cursor],
            )
            .await?;
        after = Some(row.ok_or_else(page::unknown)?.get(0));
    }
    show(
        client,
        Some(viewer),
        Which::Page {
            after,
            cursor,
            rows,
        },
    )
    .await
}

/// Conversations without their members: as the viewer sees those that are its own, or as nobody in particular sees
/// them.
pub async fn view(
    client: &Conn,
    viewer: Option<Principal>,
    ids: &[ConversationId],
) -> Result<Vec<Conversation>> {
    show(client, viewer, Which::These(ids)).await
}

/// Which conversations.
enum Which<'a> {
    These(&'a [ConversationId]),
    /// The viewer's next after a moment and an id.
    Page {
        after: Option<DateTime<Utc>>,
        cursor: Option<ConversationId>,
        rows: i64,
    },
}

/// Latest activity first. Which they are and what they are is of one snapshot: a conversation that is left in between
/// would make a page look like the last one.
async fn show(
    client: &Conn,
    viewer: Option<Principal>,
    which: Which<'_>,
) -> Result<Vec<Conversation>> {
    let (these, after, cursor, rows) = match which {
        Which::These(ids) => (Some(ids), None, None, 0),
        Which::Page {
            after,
            cursor,
            rows,
        } => (None, after, cursor, rows),
    };
    let viewer = viewer.map(Principal::id);
    let rows = client
        .query(
            "-- conversations.show
            select c.conversation_id, c.kind, c.title, c.created_by, c.created_at, c.encryption, c.epoch, c.rotation_required,
                   c.last_message_id, c.last_activity_at,
                   (select count(*) from member x where x.conversation_id = c.conversation_id),
                   me.role, unread.n,
                   r.relation_id, r.user_id, r.agent_id, r.state, r.created_at, r.revoked_at, r.purge_at
            from conversation c
            left join member me on me.conversation_id = c.conversation_id and me.principal_id = $2
            left join relation mine on mine.relation_id = me.relation_id
            left join member its on its.conversation_id = c.conversation_id and its.principal_kind = 'agent' and c.kind = 'agent'
            left join relation r on r.relation_id = its.relation_id
            cross join lateral (
                select count(*) as n from (
                    select m.sender_id, m.recipients from message m
                    where m.conversation_id = c.conversation_id and m.seq > greatest(me.read_seq, me.from_seq)
                    order by m.seq desc limit 1000
                ) latest
                where latest.sender_id <> me.principal_id
                    and (me.visibility = 'all' or me.principal_id::text = any(latest.recipients))
            ) unread
            where c.conversation_id = any(coalesce($1::uuid[], array(
                    select c.conversation_id from member me join conversation c using (conversation_id)
                    left join relation r on r.relation_id = me.relation_id
                    where me.principal_id = $2 and r.state is distinct from 'revoked'
                        and ($3::timestamptz is null
                             or (c.last_activity_at, coalesce(c.last_message_id, c.conversation_id)) < ($3, $4::uuid))
                    order by c.last_activity_at desc, coalesce(c.last_message_id, c.conversation_id) desc limit $5
                )))
                and ($2::uuid is null or me.principal_id is not null and mine.state is distinct from 'revoked')
            order by c.last_activity_at desc, coalesce(c.last_message_id, c.conversation_id) desc",
            &[&these, &viewer, &after, &cursor, &rows],
        )
        .await?;
    Ok(rows.iter().map(conversation).collect())
}

fn conversation(row: &Row) -> Conversation {
    let relation = row
        .get::<_, Option<RelationId>>(13)
        .map(|relation_id| Relation {
            relation_id,
            user_id: row.get(14),
            agent_id: row.get(15),
            state: row.get(16),
            created_at: row.get(17),
            revoked_at: row.get(18),
            purge_at: row.get(19),
        });
    Conversation {
        conversation_id: row.get(0),
        r#type: row.get(1),
        title: row.get(2),
        created_by: row.get(3),
        created_at: row.get(4),
        encryption: row.get(5),
        epoch: row.get(6),
        rotation_required: row.get(7),
        member_count: row.get(10),
        members: None,
        last_message_id: row.get(8),
        last_activity_at: row.get(9),
        mine: row.get::<_, Option<String>>(11).map(|my_role| Mine {
            unread_count: row.get(12),
            my_role,
        }),
        relation,
    }
}
