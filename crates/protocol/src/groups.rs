//! Members of groups: `/groups/{conversation_id}/*`.

use serde::{Deserialize, Serialize};

use crate::{
    conversations::{Member, Role},
    ids::{AgentId, ConversationId, InstanceId, Principal, UserId},
};

words! {
    /// The roles that a user may be given in a group.
    pub enum UserRole {
        /// The owner. The previous owner becomes an admin.
        Owner = "owner",
        /// A manager of the group.
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
    /// The messages of a group that an agent gets.
    #[derive(Default)]
    pub enum Visibility {
        /// Only messages that name it.
        #[default]
        Addressed = "addressed",
        /// All messages.
        All = "all",
    }
}

words! {
    /// The reason why a user was not added to a group.
    pub enum AdditionFault {
        /// The user does not exist.
        NotFound = "NOT_FOUND",
        /// The group has 500 members.
        GroupFull = "GROUP_FULL",
    }
}

/// The body of `POST /groups/{conversation_id}/members`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AddMembers {
    /// The users to add, 1 to 100.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 100))]
    pub user_ids: Vec<UserId>,
}

/// The answer to `POST /groups/{conversation_id}/members`: the outcome for each user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Addition {
    /// The users that were added.
    pub added: Vec<UserId>,
    /// The users that were members already.
    pub already: Vec<UserId>,
    /// The users that were not added.
    pub failed: Vec<FailedAddition>,
    /// Whether a member should rotate the key.
    pub rotation_required: bool,
}

impl Addition {
    /// Merges the outcome of the next users.
    pub fn join(&mut self, next: Addition) {
        self.added.extend(next.added);
        self.already.extend(next.already);
        self.failed.extend(next.failed);
        self.rotation_required = next.rotation_required;
    }
}

/// A user who was not added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FailedAddition {
    /// The user.
    pub user_id: UserId,
    /// The reason.
    pub reason: AdditionFault,
}

/// The body of `PATCH /groups/{conversation_id}/members/{principal_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangeMember {
    /// The member's new role.
    pub role: UserRole,
}

/// The answer to the removal of a member or an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Removal {
    /// The group.
    pub conversation_id: ConversationId,
    /// The removed member.
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
    /// The messages that it gets.
    #[serde(default)]
    pub visibility: Visibility,
}

/// The answer to `POST /groups/{conversation_id}/agent-instances`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentInstance {
    /// The agent's membership in the group.
    pub instance_id: InstanceId,
    /// The agent.
    pub agent_id: AgentId,
    /// The messages that it gets.
    pub visibility: Visibility,
}

/// The data of `member.added` and `member.removed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemberChange {
    /// The group.
    pub conversation_id: ConversationId,
    /// The member that joined, left or was removed.
    pub member: Member,
    /// The principal that added or removed it; the member itself if it left.
    pub by: Principal,
}
