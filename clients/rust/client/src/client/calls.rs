//! Keys, limits and search, and any call as it is.

use blindpipe_protocol::{
    ids::UserId,
    keys::KeyDirectory,
    limits::Buckets,
    search::{SearchHit, SearchKind, SearchToken},
};

use super::Client;
use crate::{Result, transport::Call};

impl Client {
    /// The public keys of a person's devices.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn user_keys(&self, id: UserId) -> Result<KeyDirectory> {
        let call = Call::get(format!("/keys/users/{id}/devices"));
        self.http().data(call).await
    }

    /// Every limit of this person, and the bytes of the account.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn limits(&self) -> Result<Buckets> {
        self.http().json(Call::get("/limits")).await
    }

    /// A page of what the server finds by a name: `kinds` empty means every kind with names. It
    /// cannot read messages.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn search(
        &self,
        words: &str,
        kinds: &[SearchKind],
        cursor: Option<String>,
    ) -> Result<(Vec<SearchHit>, Option<String>)> {
        let kinds: Vec<_> = kinds.iter().map(|kind| kind.as_str()).collect();
        let call = Call::get("/search")
            .query("q", Some(words))
            .query("types", (!kinds.is_empty()).then(|| kinds.join(",")))
            .query("cursor", cursor);
        let page = self.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    /// A page of the messages that were sent with all of these [`super::SendOptions::search_tokens`],
    /// for a program that makes its own. [`super::Conversation::search`] finds words.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn search_tokens(
        &self,
        tokens: &[SearchToken],
        cursor: Option<String>,
    ) -> Result<(Vec<SearchHit>, Option<String>)> {
        let tokens: Vec<_> = tokens.iter().map(ToString::to_string).collect();
        let call = Call::get("/search")
            .query("tokens", Some(tokens.join(",")))
            .query("cursor", cursor);
        let page = self.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    /// Any call as it is, with this person's access token; answers the body. `path` begins with `/`
    /// and may have a query; `json` is the body.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Usage`] for a method or a path that is none; every refusal of the service.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        json: Option<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        self.http().bytes(Call::raw(method, path, json)?).await
    }
}
