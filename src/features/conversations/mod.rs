//! Conversations, their members, and the relations that let agents be in them.
//!
//! Promises: two principals have at most one conversation of their own, however many requests race to open it; only a
//! user opens a relation with an agent.

pub mod http;
mod store;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::ids::{AgentId, ConversationId, MessageId, RelationId, UserId};

/// A conversation as its members see it.
#[derive(Clone, Debug, Serialize)]
pub struct Conversation {
    pub conversation_id: ConversationId,
    pub r#type: String,
    pub title: Option<String>,
    pub created_by: UserId,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
    pub encryption: String,
    pub epoch: i32,
    pub rotation_required: bool,
    pub member_count: usize,
    pub members: Vec<Member>,
    pub last_message_id: Option<MessageId>,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub last_activity_at: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relation: Option<Relation>,
}

/// One of its members.
#[derive(Clone, Debug, Serialize)]
pub struct Member {
    pub principal_type: String,
    pub principal_id: String,
    pub display_name: String,
    pub role: String,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub joined_at: DateTime<Utc>,
}

/// What ties a user and an agent.
#[derive(Clone, Debug, Serialize)]
pub struct Relation {
    pub relation_id: RelationId,
    pub user_id: UserId,
    pub agent_id: AgentId,
    pub state: String,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
}
