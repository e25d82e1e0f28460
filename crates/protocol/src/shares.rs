//! Shares: links that show a file, an agent's card or a contact to anyone who has them.

use serde::{Deserialize, Serialize};

use crate::{
    files::Sha256Hash,
    ids::{AgentId, FileId, UserId},
    text::Filename,
    time::Timestamp,
};

words! {
    /// The thing that a share shows.
    pub enum ShareKind {
        /// A file: its ciphertext.
        File = "file",
        /// The card of an agent.
        Agent = "agent",
        /// The card of the user who made the share.
        Contact = "contact",
    }
}

/// The body of `POST /shares`. Exactly one of `file_id`, `agent_id` and `contact` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreateShare {
    /// A file of a conversation that the caller is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_id: Option<FileId>,
    /// An agent of the caller, or one that the caller has a relation with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// True to share the caller's own card.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contact: bool,
    /// The end of the share, at most 31 days away.
    pub expires_at: Timestamp,
    /// The number of times that the share opens; absent: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub max_access_count: Option<i32>,
}

/// The answer to `POST /shares`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CreatedShare {
    /// The share: the secret part of its address, which is never shown again.
    pub share_id: String,
    /// The address to hand on. A file's key goes behind `#`, which browsers do not send.
    pub url: String,
}

/// The answer to `DELETE /shares/{share_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeletedShare {
    /// Always true.
    pub deleted: bool,
}

/// The answer to `GET /share/{share_id}`: the card of what is shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ShareCard {
    /// A file.
    File(FileCard),
    /// An agent.
    Agent(SharedAgent),
    /// A user.
    Contact(SharedContact),
}

/// The card of a shared file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FileCard {
    /// The name of the file, as its uploader gave it.
    pub filename: Filename,
    /// The number of bytes of the ciphertext.
    pub size: u64,
    /// The hash of the ciphertext.
    pub sha256: Sha256Hash,
    /// The signed address of the ciphertext. It needs no token.
    pub url: String,
    /// The end of that address.
    pub url_expires_at: Timestamp,
    /// The end of the share.
    pub expires_at: Timestamp,
}

/// The card of a shared agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SharedAgent {
    /// The agent.
    pub agent_id: AgentId,
    /// Its display name.
    pub display_name: String,
    /// Its purpose; null if not given.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub description: Option<String>,
    /// The end of the share.
    pub expires_at: Timestamp,
}

/// The card of a shared contact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SharedContact {
    /// The user.
    pub user_id: UserId,
    /// The user's display name.
    pub display_name: String,
    /// The end of the share.
    pub expires_at: Timestamp,
}
