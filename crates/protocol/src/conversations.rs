//! Conversations and their members: `/conversations`, and `POST /groups`.

use serde::{Deserialize, Serialize};

use crate::{
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
        /// Any number of users, and agents that they bring.
        Group = "group",
    }
}

words! {
    /// What payloads a conversation takes.
    #[derive(Default)]
    pub enum Encryption {
        /// Any.
        #[default]
        Optional = "optional",
        /// Encrypted ones only. It is never taken back.
        Required = "required",
    }
}

words! {
    /// What a member is in its conversation.
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
    /// Whether it may manage a group.
    pub fn is_admin(self) -> bool {
        matches!(self, Role::Owner | Role::Admin)
    }
}

/// The body of `POST /conversations`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum OpenConversation {
    /// With an agent; makes the relation too.
    Agent {
        /// The agent.
        agent_id: AgentId,
    },
    /// With another user.
    Direct {
        /// The user.
        user_id: UserId,
    },
    /// With any number of users.
    Group(OpenGroup),
}

/// The body of `POST /groups`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OpenGroup {
    /// What the group is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Title>,
    /// The other members; with the caller at most 500.
    #[serde(default)]
    pub member_ids: Vec<UserId>,
    /// What payloads the group takes.
    #[serde(default)]
    pub encryption: Encryption,
}

/// A conversation as its members see it. What differs between them is absent where all are told at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Conversation {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// Its kind.
    pub r#type: ConversationKind,
    /// A group's title; null without.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub title: Option<String>,
    /// The user who opened it.
    pub created_by: UserId,
    /// When it was opened.
    pub created_at: Timestamp,
    /// What payloads it takes.
    pub encryption: Encryption,
    /// The epoch of its key; 0 before the first.
    pub epoch: i32,
    /// Whether a member should rotate the key.
    pub rotation_required: bool,
    /// Members.
    pub member_count: i64,
    /// The members; absent in lists, and in what a group is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Member>>,
    /// Its newest message; null without.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub last_message_id: Option<MessageId>,
    /// When its newest message came, or it was opened.
    pub last_activity_at: Timestamp,
    /// Messages of others after the caller's read mark, among the newest thousand; absent in events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread_count: Option<i64>,
    /// The caller's role; absent in events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub my_role: Option<Role>,
    /// The relation that carries it; absent unless it is one with an agent.
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
    /// What it is called.
    pub display_name: String,
    /// What it is here.
    pub role: Role,
    /// When it joined.
    pub joined_at: Timestamp,
}

/// The body of `PATCH /conversations/{conversation_id}`: one of the two or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangeConversation {
    /// Only `required` can be set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Another title, of a group.
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

/// What `POST /conversations/{conversation_id}/read` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReadMark {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// As asked for; an earlier message leaves the mark where it is.
    pub message_id: MessageId,
    /// Messages of others after the mark, among the newest thousand.
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
