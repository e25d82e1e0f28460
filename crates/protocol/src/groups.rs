//! Members of groups: `/groups/{conversation_id}/*`.

use serde::{Deserialize, Serialize};

use crate::{
    conversations::{Member, Role},
    ids::{AgentId, ConversationId, InstanceId, Principal, UserId},
};

words! {
    /// What a member who is a user may be made.
    pub enum UserRole {
        /// The owner; the owner before is an admin then.
        Owner = "owner",
        /// A manager.
        Admin = "admin",
        /// Any other user.
        Member = "member",
    }
}

impl From<UserRole> for Role {
    fn from(role: UserRole) -> Self {
        match role {
            UserRole::Owner => Role::Owner,
            UserRole::Admin => Role::Admin,
            UserRole::Member => Role::Member,
        }
    }
}

words! {
    /// Which messages of a group an agent gets.
    #[derive(Default)]
    pub enum Visibility {
        /// Those that name it.
        #[default]
        Addressed = "addressed",
        /// All.
        All = "all",
    }
}

words! {
    /// Why a user was not added to a group.
    pub enum AdditionFault {
        /// There is no such user.
        NotFound = "NOT_FOUND",
        /// The group has 500 members.
        GroupFull = "GROUP_FULL",
    }
}

/// The body of `POST /groups/{conversation_id}/members`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AddMembers {
    /// 1 to 100 users.
    pub user_ids: Vec<UserId>,
}

/// What `POST /groups/{conversation_id}/members` answers: what became of each user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Addition {
    /// Members now.
    pub added: Vec<UserId>,
    /// Members before.
    pub already: Vec<UserId>,
    /// Not added.
    pub failed: Vec<FailedAddition>,
    /// Whether a member should rotate the key.
    pub rotation_required: bool,
}

/// A user who was not added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FailedAddition {
    /// The user.
    pub user_id: UserId,
    /// Why.
    pub reason: AdditionFault,
}

/// The body of `PATCH /groups/{conversation_id}/members/{principal_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangeMember {
    /// What the member is to be.
    pub role: UserRole,
}

/// What removing a member or an agent answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Removal {
    /// The group.
    pub conversation_id: ConversationId,
    /// The member that is no more.
    pub principal_id: Principal,
    /// Whether a member should rotate the key.
    pub rotation_required: bool,
}

/// The body of `POST /groups/{conversation_id}/agent-instances`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AddAgent {
    /// The agent, with which the caller has an active relation.
    pub agent_id: AgentId,
    /// Which messages it gets.
    #[serde(default)]
    pub visibility: Visibility,
}

/// What `POST /groups/{conversation_id}/agent-instances` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentInstance {
    /// The agent's place in the group.
    pub instance_id: InstanceId,
    /// The agent.
    pub agent_id: AgentId,
    /// Which messages it gets.
    pub visibility: Visibility,
}

/// The data of `member.added` and `member.removed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemberChange {
    /// The group.
    pub conversation_id: ConversationId,
    /// The member that joined or left.
    pub member: Member,
    /// The principal that added or removed it; the member itself if it left.
    pub by: Principal,
}
