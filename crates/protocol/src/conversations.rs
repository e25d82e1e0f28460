//! Conversations and their members: `/conversations`, and `POST /groups`.

use serde::{Deserialize, Serialize};

use crate::{
    groups::Visibility,
    ids::{AgentId, ConversationId, MessageId, Principal, PrincipalKind, UserId},
    relations::Relation,
    text::Title,
    time::Timestamp,
};

words! {
    /// A kind of conversation.
    pub enum ConversationKind {
        /// A user and an agent.
        Agent = "agent",
        /// Two users.
        Direct = "direct",
        /// Any number of users, and agents that they add.
        Group = "group",
    }
}

words! {
    /// The payloads that a conversation accepts.
    #[derive(Default)]
    pub enum Encryption {
        /// Any payload.
        #[default]
        Optional = "optional",
        /// Only encrypted payloads. This setting is permanent.
        Required = "required",
    }
}

words! {
    /// The role of a member in its conversation.
    pub enum Role {
        /// The owner of a group, or the opener of another conversation.
        Owner = "owner",
        /// A manager of a group.
        Admin = "admin",
        /// Any other user.
        Member = "member",
        /// An agent.
        Agent = "agent",
    }
}

impl Role {
    /// Whether the role may manage a group.
    pub fn is_admin(self) -> bool {
        matches!(self, Role::Owner | Role::Admin)
    }
}

/// The body of `POST /conversations`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum OpenConversation {
    /// Opens a conversation with an agent, and the relation.
    Agent {
        /// The agent.
        agent_id: AgentId,
    },
    /// Opens a conversation with another user.
    Direct {
        /// The user.
        user_id: UserId,
    },
    /// Opens a group.
    Group(OpenGroup),
}

/// The body of `POST /groups`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OpenGroup {
    /// The title of the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Title>,
    /// The other members; with the caller at most 500.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 499))]
    pub member_ids: Vec<UserId>,
    /// The payloads that the group accepts.
    #[serde(default)]
    pub encryption: Encryption,
}

/// A conversation as its members see it. Events to all members omit the fields that differ between
/// members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Conversation {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// Its kind.
    pub r#type: ConversationKind,
    /// A group's title; null if none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub title: Option<String>,
    /// The user who opened it.
    pub created_by: UserId,
    /// The time of its opening.
    pub created_at: Timestamp,
    /// The payloads that it accepts.
    pub encryption: Encryption,
    /// The epoch of its key; 0 before the first.
    pub epoch: i32,
    /// Whether a member should rotate the key.
    pub rotation_required: bool,
    /// The number of members.
    pub member_count: i64,
    /// The members; absent in lists and in events to groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Member>>,
    /// Its newest message; null if none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub last_message_id: Option<MessageId>,
    /// The time of its newest message, or of its opening.
    pub last_activity_at: Timestamp,
    /// The number of others' messages after the caller's read mark, among the newest thousand;
    /// absent in events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread_count: Option<i64>,
    /// The caller's role; absent in events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub my_role: Option<Role>,
    /// The relation behind a conversation with an agent; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relation: Option<Relation>,
}

/// A member of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Member {
    /// Whether it is a user or an agent.
    pub principal_type: PrincipalKind,
    /// The member.
    pub principal_id: Principal,
    /// Its display name.
    pub display_name: String,
    /// The member's role.
    pub role: Role,
    /// The messages that an agent gets; absent for a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// The time of joining.
    pub joined_at: Timestamp,
}

/// The body of `PATCH /conversations/{conversation_id}`: one of the two or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangeConversation {
    /// Only `required` can be set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// A group's new title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Title>,
}

/// The body of `POST /conversations/{conversation_id}/read`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MarkRead {
    /// The last message read.
    pub message_id: MessageId,
}

/// The answer to `POST /conversations/{conversation_id}/read`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReadMark {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The message from the request. An earlier message does not move the mark.
    pub message_id: MessageId,
    /// The number of others' messages after the mark, among the newest thousand.
    pub unread_count: i64,
}

/// The data of `message.read`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReadReceipt {
    /// The reader.
    pub principal_id: Principal,
    /// The last message that it has read.
    pub message_id: MessageId,
}
