//! The members of a conversation, its title and its rules.

use blindpipe_protocol::{
    conversations::{ChangeConversation, Conversation as Info, Encryption, Member},
    group_keys::{RequestRotation, RotationRequested},
    groups::{
        AddAgent, AddMembers, Addition, AgentInstance, ChangeMember, Removal, UserRole, Visibility,
    },
    ids::{AgentId, InstanceId, Principal, UserId},
    text::Title,
};

use super::Conversation;
use crate::{Result, transport::Call};

impl Conversation {
    /// Lets an agent in. It reads what names it, or everything.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn add_agent(
        &self,
        agent_id: AgentId,
        visibility: Visibility,
    ) -> Result<AgentInstance> {
        let body = AddAgent {
            agent_id,
            visibility,
        };
        let path = format!("/groups/{}/agent-instances", self.id);
        self.changed(Call::post(path, &body)).await
    }

    /// Adds people to a group.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn add_members(&self, user_ids: Vec<UserId>) -> Result<Addition> {
        let path = format!("/groups/{}/members", self.id);
        self.changed(Call::post(path, &AddMembers { user_ids }))
            .await
    }

    /// Removes a member, and makes a fresh secret at once.
    ///
    /// # Errors
    ///
    /// Every refusal of the service; [`Error::KeyUnavailable`](crate::Error::KeyUnavailable) if the member is removed and the
    /// server takes no fresh secret. Sends wait for it.
    pub async fn remove(&self, member: Principal) -> Result<Removal> {
        self.removed(format!("/groups/{}/members/{member}", self.id))
            .await
    }

    async fn removed(&self, path: String) -> Result<Removal> {
        let removal = self.changed(Call::delete(path)).await?;
        Box::pin(self.client.rotate_away(self.id)).await?;
        Ok(removal)
    }

    /// Members are read anew before the next look.
    async fn changed<T: serde::de::DeserializeOwned>(&self, call: Call) -> Result<T> {
        let done = self.client.http().data(call).await?;
        if let Ok(session) = self.client.session() {
            session.load(self.id).await?.is_stale = true;
        }
        Ok(done)
    }

    /// Takes an agent out of a group, and makes a fresh secret at once.
    ///
    /// # Errors
    ///
    /// As [`Self::remove`].
    pub async fn remove_agent(&self, instance_id: InstanceId) -> Result<Removal> {
        self.removed(format!("/groups/{}/agent-instances/{instance_id}", self.id))
            .await
    }

    /// Makes a member of a group an admin, or an admin a member.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn set_role(&self, user_id: UserId, role: UserRole) -> Result<Member> {
        let path = format!("/groups/{}/members/{user_id}", self.id);
        self.changed(Call::patch(path, &ChangeMember { role }))
            .await
    }

    /// Another title for a group. The service reads it.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn set_title(&self, title: &str) -> Result<Info> {
        let title = Some(Title(title.to_owned()));
        self.change_rules(&ChangeConversation {
            title,
            ..ChangeConversation::default()
        })
        .await
    }

    /// From now on the service takes nothing in clear here. It is never taken back.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn require_encryption(&self) -> Result<Info> {
        let encryption = Some(Encryption::Required);
        self.change_rules(&ChangeConversation {
            encryption,
            ..ChangeConversation::default()
        })
        .await
    }

    async fn change_rules(&self, change: &ChangeConversation) -> Result<Info> {
        self.changed(Call::patch(format!("/conversations/{}", self.id), change))
            .await
    }

    /// Asks the other person of a conversation of two for a fresh secret, such as one whose keys are lost.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn request_rotation(&self) -> Result<RotationRequested> {
        let body = RequestRotation {
            conversation_id: self.id,
            reason: None,
        };
        let call = Call::post("/keys/rotation/request", &body);
        self.client.http().data(call).await
    }
}
