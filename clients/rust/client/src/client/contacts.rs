//! The agents and people that a person has to do with: relations, blocks, shares, the log of reads.

use blindpipe_protocol::{
    access_log::{Access, AccessQuery},
    blocks::{Block, Blocked, Unblocked},
    files::DeletedObject,
    ids::{Principal, RelationId},
    relations::Relation,
    shares::{CreateShare, CreatedShare, DeletedShare, ShareCard},
};
use serde_json::json;

use super::Client;
use crate::{Result, transport::Call};

impl Client {
    /// A page of the agents that may write to this person, and the cursor of the next.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn relations(
        &self,
        cursor: Option<String>,
    ) -> Result<(Vec<Relation>, Option<String>)> {
        let call = Call::get("/relations").query("cursor", cursor);
        let page = self.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    /// Ends the relation with an agent at once.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn revoke_relation(&self, id: RelationId) -> Result<Relation> {
        let call = Call::delete(format!("/relations/{id}"));
        self.http().data(call).await
    }

    /// A page of the people and agents that this person has blocked, and the cursor of the next.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn blocks(&self, cursor: Option<String>) -> Result<(Vec<Block>, Option<String>)> {
        let call = Call::get("/users/me/blocks").query("cursor", cursor);
        let page = self.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    /// Keeps somebody from opening conversations with this person.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn block(&self, who: Principal) -> Result<Blocked> {
        let call = Call::put(format!("/users/me/blocks/{who}"), &json!({}));
        self.http().data(call).await
    }

    /// Takes a block back.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn unblock(&self, who: Principal) -> Result<Unblocked> {
        let call = Call::delete(format!("/users/me/blocks/{who}"));
        self.http().data(call).await
    }

    /// Makes a link to a file's ciphertext, to an agent, or to this person.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn share(&self, share: &CreateShare) -> Result<CreatedShare> {
        self.http().data(Call::post("/shares", share)).await
    }

    /// The card behind a link, of anybody's share. It counts as an access.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn open_share(&self, share_id: &str) -> Result<ShareCard> {
        let call = Call::get(format!("/share/{share_id}"));
        self.http().data(call).await
    }

    /// Ends a link.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn revoke_share(&self, share_id: &str) -> Result<DeletedShare> {
        let call = Call::delete(format!("/shares/{share_id}"));
        self.http().data(call).await
    }

    /// Deletes the bytes of a file that this person has sent, or of a group that it looks after.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn delete_object(&self, object_key: &str) -> Result<DeletedObject> {
        let call = Call::delete(format!("/objects/{object_key}"));
        self.http().data(call).await
    }

    /// A page of the reads of this person's data by agents, newest first, and the cursor of the next.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn access_log(
        &self,
        of: &AccessQuery,
        cursor: Option<String>,
    ) -> Result<(Vec<Access>, Option<String>)> {
        let call = Call::get("/grants/access-log")
            .query("agent_id", of.agent_id)
            .query("conversation_id", of.conversation_id)
            .query("from", of.from)
            .query("to", of.to)
            .query("cursor", cursor);
        let page = self.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }
}
