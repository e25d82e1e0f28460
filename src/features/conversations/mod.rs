//! Conversations, their members and read marks.
//!
//! Promises: two principals have at most one conversation of their own, however many requests race
//! to open it. Only members learn that a conversation exists. `encryption: required` is never taken
//! back.

mod audience;
pub(crate) mod http;
mod store;

use blindpipe_protocol::conversations::{ConversationKind, Encryption, Role};
use chrono::{DateTime, Utc};
use serde::Serialize;

pub use self::{
    audience::Audience,
    store::{
        AskedUser, MembershipScope, Place, add_member, asked_user, is_admin, kind, leave_next,
        lock, member, members, recipients, remove_member, touch, updated,
    },
};
use super::relations::Relation;
use crate::ids::{ConversationId, MessageId, Principal, PrincipalKind, UserId};

/// A conversation as its members see it. Shared events omit what differs between members.
#[derive(Clone, Debug, Serialize)]
pub struct Conversation {
    pub conversation_id: ConversationId,
    pub r#type: ConversationKind,
    pub title: Option<String>,
    pub created_by: UserId,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
    pub encryption: Encryption,
    pub epoch: i32,
    pub rotation_required: bool,
    pub member_count: i64,
    /// Absent in lists and in events to groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Member>>,
    pub last_message_id: Option<MessageId>,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub last_activity_at: DateTime<Utc>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub mine: Option<Mine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relation: Option<Relation>,
}

/// The part of a conversation that only the caller sees.
#[derive(Clone, Debug, Serialize)]
pub struct Mine {
    /// Messages of others after the read mark, counted among the newest thousand messages.
    pub unread_count: i64,
    pub my_role: Role,
}

/// A member of a conversation.
#[derive(Clone, Debug, Serialize)]
pub struct Member {
    pub principal_type: PrincipalKind,
    pub principal_id: Principal,
    pub display_name: String,
    pub role: Role,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub joined_at: DateTime<Utc>,
}
