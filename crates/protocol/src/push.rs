//! Push: `/users/me/devices/{device_id}/push`, `/push/key`, and the content of a push.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ConversationId, EventId},
    text::Secret,
    time::Timestamp,
};

words! {
    /// The kind of push service.
    pub enum PushKind {
        /// The push service of a browser (RFC 8030).
        Webpush = "webpush",
        /// A distributor of UnifiedPush.
        Unifiedpush = "unifiedpush",
    }
}

/// The body of `PUT /users/me/devices/{device_id}/push`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PutPush {
    /// The kind of push service.
    pub kind: PushKind,
    /// The address that the push service gave: https, and public.
    pub endpoint: Secret,
    /// The device's public key on P-256: 65 bytes in base64url, without padding.
    pub p256dh: String,
    /// The device's secret of 16 bytes in base64url, without padding.
    pub auth: Secret,
}

/// A device's subscription to pushes, without its address and keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PushSubscription {
    /// The device.
    pub device_id: String,
    /// The kind of push service.
    pub kind: PushKind,
    /// The reason why the last push failed, as a word; null if it did not.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub last_error: Option<String>,
    /// The time of the first subscription of this session.
    pub created_at: Timestamp,
    /// The time of the latest PUT.
    pub updated_at: Timestamp,
}

/// The answer to `DELETE /users/me/devices/{device_id}/push`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeletedPush {
    /// The device.
    pub device_id: String,
    /// The time of the deletion.
    pub deleted_at: Timestamp,
}

/// The answer to `GET /push/key`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PushKey {
    /// The server's public key on P-256: 65 bytes in base64url, without padding. A browser calls it
    /// `applicationServerKey`.
    pub public_key: String,
}

/// The content of a push, which the device decrypts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PushContent {
    /// The name of the event.
    pub event: String,
    /// The event's id.
    pub event_id: EventId,
    /// The conversation; left out if the event has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// The approval, the tool call's request or the grant; left out for other events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The number of events that wait for the device.
    pub count: i64,
}
