//! The keys of conversations: `/keys/groups/*`, `/keys/rotation/request`.

use serde::{Deserialize, Serialize};

use crate::{
    groups::Visibility,
    ids::{ConversationId, EventId, Principal, PrincipalKind, UserId},
    keys::Introduction,
    text::{Blob, RecipientDevice, RotationReason, WrappedKeyText},
    time::Timestamp,
};

/// The body of `POST /keys/groups/{conversation_id}/rotate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RotateKey {
    /// The current epoch, which the new key follows; 0 before the first key.
    pub base_epoch: i32,
    /// The reason, for the other members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<RotationReason>,
    /// A key for each device with keys of each member, and for each agent that has keys.
    pub wrapped_keys: Vec<RecipientKey>,
}

/// A new key, encrypted for one recipient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RecipientKey {
    /// The member.
    pub principal_id: Principal,
    /// A user's device; omitted for an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<RecipientDevice>,
    /// The encrypted key.
    pub wrapped_key: WrappedKeyText,
}

/// The answer to `POST /keys/groups/{conversation_id}/rotate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RotatedKey {
    /// The epoch of the new key.
    pub epoch: i32,
    /// The time of the start.
    pub rotated_at: Timestamp,
}

/// The opener of a wrapped key: an item of `missing` and `extra` of `RECIPIENTS_MISMATCH`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyRecipient {
    /// The member.
    pub principal_id: Principal,
    /// A user's device; absent for an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
}

/// The query of `GET /keys/groups/{conversation_id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupKeysQuery {
    /// An earlier epoch; the current one if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i32>,
}

/// The reader's keys of one epoch: the answer to `GET /keys/groups/{conversation_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OwnGroupKeys {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The epoch of the keys below.
    pub epoch: i32,
    /// The current epoch.
    pub current_epoch: i32,
    /// Whether a member should rotate the key.
    pub rotation_required: bool,
    /// The reader's keys; empty if it was no member in that epoch.
    pub wrapped_keys: Vec<WrappedKey>,
}

/// The query of `GET /keys/groups/{conversation_id}/recipients`, in addition to the query of every
/// list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyHoldersQuery {
    /// Selects one principal, who may have left the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<Principal>,
}

/// The members of a conversation with their public keys, at most 100: the answer to
/// `GET /keys/groups/{conversation_id}/recipients`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyHolders {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The current epoch.
    pub epoch: i32,
    /// Whether a member should rotate the key.
    pub rotation_required: bool,
    /// The members in the order of their ids.
    pub members: Vec<KeyHolder>,
    /// The cursor of the next page; null on the last one.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub next_cursor: Option<String>,
}

/// A principal with its public keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyHolder {
    /// Whether it is a user or an agent.
    pub principal_type: PrincipalKind,
    /// The principal.
    pub principal_id: Principal,
    /// Whether it is a member now.
    pub is_member: bool,
    /// The messages that an agent gets; absent for a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// The version of its list of keys. It rises with every change.
    pub list_version: i32,
    /// Its keys: the current ones first, then at most 160 in all of those that were retired.
    pub devices: Vec<PublicKeys>,
}

/// A pair of public keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PublicKeys {
    /// A user's device; absent for an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// The id of the pair of keys.
    pub key_id: String,
    /// The X25519 public key.
    pub public_key: Blob,
    /// The Ed25519 public key.
    pub signing_public_key: Blob,
    /// The encryption schemes that its holder speaks.
    pub schemes: Vec<String>,
    /// The signature of an earlier key; absent if none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub introduction: Option<Introduction>,
    /// The time since which the keys were shown.
    pub created_at: Timestamp,
    /// The end of the keys, past or ahead (an agent's grace); absent for current keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<Timestamp>,
}

/// A wrapped key for the reader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WrappedKey {
    /// The reader's device; absent for an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// The encrypted key.
    pub wrapped_key: String,
}

/// The body of `POST /keys/rotation/request`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestRotation {
    /// A direct conversation of two users.
    pub conversation_id: ConversationId,
    /// The reason, for the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<RotationReason>,
}

/// The answer to `POST /keys/rotation/request`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RotationRequested {
    /// The id of the request, and of its event to the peer.
    pub request_id: EventId,
    /// The end of the request, after 24 hours.
    pub expires_at: Timestamp,
}

/// The data of `key.rotated`. Each member gets its own keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyRotation {
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The epoch of the new key.
    pub epoch: i32,
    /// The user who rotated.
    pub by: UserId,
    /// The user's reason; null if none was given.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub reason: Option<String>,
    /// The reader's keys.
    pub wrapped_keys: Vec<WrappedKey>,
}

/// The data of `key.rotation_requested`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RotationRequest {
    /// The request.
    pub request_id: EventId,
    /// The conversation.
    pub conversation_id: ConversationId,
    /// The user who asks.
    pub by: Principal,
    /// The user's reason; null if none was given.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub reason: Option<String>,
}
