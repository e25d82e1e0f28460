//! A statement per kind. Each begins at the caller's memberships, so it reads what the caller may
//! see and nothing else.
//!
//! `offset 0` in a lateral join keeps the planner from reading a whole table instead: each
//! membership leads to its rows by an index, whatever the tables' sizes.

use blindpipe_protocol::search::{SearchHit, SearchKind, SearchMatch};
use tokio_postgres::Row;
use uuid::Uuid;

use super::rules::SearchCursor;
use crate::{
    db::Conn,
    error::Result,
    ids::{ConversationId, UserId},
};

/// Something that was found.
pub struct Hit {
    pub cursor: SearchCursor,
    title: Option<String>,
    found_by: SearchMatch,
    /// The conversation of a file or a message.
    conversation: Option<ConversationId>,
    /// The number of a message.
    seq: Option<i64>,
}

impl From<Hit> for SearchHit {
    fn from(hit: Hit) -> Self {
        SearchHit {
            kind: hit.cursor.kind,
            id: hit.cursor.wire_id(),
            title: hit.title,
            r#match: hit.found_by,
            conversation_id: hit.conversation,
            seq: hit.seq,
        }
    }
}

/// The least similarity of a name, as `pg_trgm` measures it: the default of its operators.
const MIN_SIMILARITY: f32 = 0.6;

/// At most `rows` things of a kind whose name fits the words, newest first, after the id of the
/// last one seen.
pub async fn named(
    client: &Conn,
    kind: SearchKind,
    caller: UserId,
    words: &str,
    after: Option<Uuid>,
    rows: i64,
) -> Result<Vec<Hit>> {
    let sql = match kind {
        SearchKind::Conversation => CONVERSATIONS,
        SearchKind::User => USERS,
        SearchKind::Agent => AGENTS,
        SearchKind::File => FILES,
        // Messages are found by tokens.
        SearchKind::Message => return Ok(Vec::new()),
    };
    let found = client
        .query(sql, &[&caller, &words, &after, &rows, &MIN_SIMILARITY])
        .await?;
    let hit = |row: &Row| Hit {
        cursor: SearchCursor {
            kind,
            id: row.get("id"),
        },
        title: row.get("title"),
        found_by: if row.get("is_substring") {
            SearchMatch::Substring
        } else {
            SearchMatch::Trigram
        },
        conversation: row.get("conversation_id"),
        seq: None,
    };
    Ok(found.iter().map(hit).collect())
}

/// A conversation of two is found by the name of the other one.
const CONVERSATIONS: &str = "-- search.conversations
select f.id, f.title, position(lower($2) in lower(f.title)) > 0 as is_substring, null::uuid as conversation_id
from (
    select c.conversation_id as id, coalesce(c.title, u.display_name, a.display_name) as title
    from member m
    cross join lateral (select * from conversation where conversation_id = m.conversation_id offset 0) c
    left join user_account u on c.kind = 'direct' and u.user_id = case when c.pair_low = $1 then c.pair_high else c.pair_low end
    left join agent a on c.kind = 'agent' and a.agent_id = case when c.pair_low = $1 then c.pair_high else c.pair_low end
    where m.principal_id = $1 and ($3::uuid is null or m.conversation_id < $3)
) f
where position(lower($2) in lower(f.title)) > 0 or word_similarity($2, f.title) >= $5
order by f.id desc limit $4";

const USERS: &str = "-- search.users
select u.user_id as id, u.display_name as title, position(lower($2) in lower(u.display_name)) > 0 as is_substring,
    null::uuid as conversation_id
from (
    select distinct theirs.principal_id
    from member mine cross join lateral (
        select principal_id from member
        where conversation_id = mine.conversation_id and principal_kind = 'user' and principal_id <> $1
            and ($3::uuid is null or principal_id < $3)
        offset 0
    ) theirs
    where mine.principal_id = $1
) known join user_account u on u.user_id = known.principal_id
where u.deleted_at is null
    and (position(lower($2) in lower(u.display_name)) > 0 or word_similarity($2, u.display_name) >= $5)
order by u.user_id desc limit $4";

const AGENTS: &str = "-- search.agents
select a.agent_id as id, a.display_name as title, position(lower($2) in lower(a.display_name)) > 0 as is_substring,
    null::uuid as conversation_id
from (
    select agent_id from agent where owner_user_id = $1
    union select agent_id from relation where user_id = $1 and state = 'active'
    union select theirs.principal_id from member mine cross join lateral (
        select principal_id from member where conversation_id = mine.conversation_id and principal_kind = 'agent' offset 0
    ) theirs where mine.principal_id = $1
) known join agent a using (agent_id)
where a.state <> 'deleted' and ($3::uuid is null or a.agent_id < $3)
    and (position(lower($2) in lower(a.display_name)) > 0 or word_similarity($2, a.display_name) >= $5)
order by a.agent_id desc limit $4";

/// Files that can be read, by the name that the uploader declared.
const FILES: &str = "-- search.files
select f.upload_id as id, f.filename as title, position(lower($2) in lower(f.filename)) > 0 as is_substring, f.conversation_id
from member m
cross join lateral (select * from upload where conversation_id = m.conversation_id and state = 'confirmed' offset 0) f
where m.principal_id = $1 and ($3::uuid is null or f.upload_id < $3)
    and (position(lower($2) in lower(f.filename)) > 0 or word_similarity($2, f.filename) >= $5)
    and exists (select from live_object o where o.object_key = f.object_key)
order by f.upload_id desc limit $4";

/// At most `rows` messages that have all tokens, newest first, after the last one seen.
pub async fn messages(
    client: &Conn,
    caller: UserId,
    tokens: &[String],
    after: Option<SearchCursor>,
    rows: i64,
) -> Result<Vec<Hit>> {
    let after = after.map(|cursor| cursor.id);
    let found = client
        .query(
            "-- search.messages
            select message.message_id as id, m.conversation_id, t.seq
            from member m
            cross join lateral (
                select seq from message_token
                where conversation_id = m.conversation_id and token = ($2::text[])[1] and seq > m.from_seq offset 0
            ) t
            cross join lateral (
                select message_id from message where conversation_id = m.conversation_id and seq = t.seq offset 0
            ) message
            where m.principal_id = $1 and ($3::uuid is null or message.message_id < $3)
                and cardinality(($2::text[])[2:]) = (
                    select count(*) from unnest(($2::text[])[2:]) as wanted (token)
                    cross join lateral (
                        select from message_token other
                        where other.conversation_id = m.conversation_id and other.token = wanted.token and other.seq = t.seq
                        offset 0
                    ) has)
            order by message.message_id desc limit $4",
            &[&caller, &tokens, &after, &rows],
        )
        .await?;
    let hit = |row: &Row| Hit {
        cursor: SearchCursor {
            kind: SearchKind::Message,
            id: row.get("id"),
        },
        title: None,
        found_by: SearchMatch::Token,
        conversation: row.get("conversation_id"),
        seq: row.get("seq"),
    };
    Ok(found.iter().map(hit).collect())
}
