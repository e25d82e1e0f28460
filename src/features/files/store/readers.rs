//! The right to read an object.

use chrono::{DateTime, Utc};

use super::content_of;
use crate::{
    db::Conn,
    error::Result,
    ids::{AgentId, ConversationId, Principal},
    objects::{Content, ObjectKey},
};

/// The reader of an object.
pub enum Reader {
    /// A member of the file's conversation, or the agent of an event.
    Principal(Principal),
    /// The holder of an address out of a share: the hash of the share's id.
    Share(String),
    /// The holder of an address of an event's data, signed then. Rights that are younger do not count.
    Event(DateTime<Utc>),
}

/// An object that its reader may read.
pub struct FoundObject {
    pub content: Content,
    /// The name of the file; none for a share and for an event's data.
    pub filename: Option<String>,
    /// The agent of an event.
    pub agent: Option<AgentId>,
    /// The conversation of a member's file.
    pub conversation: Option<ConversationId>,
}

/// Finds an object, if the reader has a right to it now.
pub async fn readable(
    client: &Conn,
    key: &ObjectKey,
    reader: &Reader,
) -> Result<Option<FoundObject>> {
    let row = match reader {
        Reader::Principal(who) => {
            let sql = "-- files.of_member
                select o.size, o.sha256, u.filename, null::uuid as agent_id, u.conversation_id
                from live_object o join upload u on u.object_key = o.object_key and u.state = 'confirmed'
                join active_member m on m.conversation_id = u.conversation_id and m.principal_id = $2
                where o.object_key = $1 and o.sha256 is not null
                union all
                select o.size, o.sha256, null, e.agent_id, null from live_object o join event_object e using (object_key)
                where o.object_key = $1 and e.agent_id = $2 and o.sha256 is not null";
            client.query_opt(sql, &[&key.as_str(), &who.id()]).await?
        }
        Reader::Share(hash) => {
            let sql = "-- files.of_share
                select o.size, o.sha256, null as filename, null::uuid as agent_id, null::uuid as conversation_id
                from live_object o join upload u on u.object_key = o.object_key and u.state = 'confirmed'
                join share s on s.upload_id = u.upload_id and encode(s.share_hash, 'hex') = $2 and s.expires_at > app_now()
                join active_member m on m.conversation_id = u.conversation_id and m.principal_id = s.owner_id
                where o.object_key = $1 and o.sha256 is not null";
            client.query_opt(sql, &[&key.as_str(), hash]).await?
        }
        Reader::Event(signed_at) => {
            let sql = "-- files.of_event
                select o.size, o.sha256, null as filename, e.agent_id, null::uuid as conversation_id
                from live_object o join event_object e using (object_key)
                where o.object_key = $1 and o.sha256 is not null
                    and exists (
                        select from live_agent_token t where t.agent_id = e.agent_id and t.created_at < $2)
                    and (e.conversation_id is null or exists (
                        select from active_member m left join relation r on r.relation_id = m.relation_id
                        where m.conversation_id = e.conversation_id and m.principal_id = e.agent_id
                            and greatest(m.joined_at, r.created_at) < $2))";
            client.query_opt(sql, &[&key.as_str(), signed_at]).await?
        }
    };
    let found = row.map(|row| {
        Ok(FoundObject {
            content: content_of(&row)?,
            filename: row.get("filename"),
            agent: row.get("agent_id"),
            conversation: row.get("conversation_id"),
        })
    });
    found.transpose()
}
