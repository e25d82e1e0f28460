//! Conversations, their members, and who has read how far.
//!
//! Promises: two principals have at most one conversation of their own, however many requests race to open it; nobody
//! but a member learns that a conversation exists; `encryption: required` is never taken back.

pub(crate) mod audience;
pub(crate) mod http;
mod store;

use chrono::{DateTime, Utc};
use serde::Serialize;

pub use self::store::{
    MembershipScope, Place, add_member, is_admin, kind, leave_next, lock, member, members,
    recipients, remove_member, touch, updated,
};
use super::relations::Relation;
use crate::ids::{ConversationId, MessageId, Principal, UserId};

/// A conversation as its members see it. What differs between them is absent where all are told at once.
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
    pub member_count: i64,
    /// Not in lists, and not in what a group is told.
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

/// What only one member sees of a conversation.
#[derive(Clone, Debug, Serialize)]
pub struct Mine {
    /// Messages of others after the read mark, as far as the newest thousand messages tell.
    pub unread_count: i64,
    pub my_role: String,
}

/// One of its members.
#[derive(Clone, Debug, Serialize)]
pub struct Member {
    pub principal_type: &'static str,
    pub principal_id: Principal,
    pub display_name: String,
    pub role: String,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub joined_at: DateTime<Utc>,
}
