//! Devices: `/users/me/devices`.

use serde::{Deserialize, Serialize};

use crate::{ids::UserId, time::Timestamp};

/// A device as its owner sees it: an item of `GET /users/me/devices`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Device {
    /// The device's id; the next page starts after it.
    pub device_id: String,
    /// What the user calls it; null if nothing.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub display_name: Option<String>,
    /// What it runs; null if it did not say.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub platform: Option<String>,
    /// When it first signed in.
    pub created_at: Timestamp,
    /// When its session was last refreshed or began.
    pub last_seen_at: Timestamp,
    /// Whether it is the caller's.
    pub current: bool,
    /// Whether the directory shows keys of it.
    pub has_keys: bool,
    /// Whether it has a socket on any node.
    pub online: bool,
}

/// What `DELETE /users/me/devices/{device_id}` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RevokedDevice {
    /// The device.
    pub device_id: String,
    /// When it was revoked.
    pub revoked_at: Timestamp,
}

/// The data of `key.device_added` and `key.device_removed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeviceKeyChange {
    /// The device's user.
    pub user_id: UserId,
    /// The device.
    pub device_id: String,
    /// The pair of public keys that the directory shows now, or no longer shows.
    pub key_id: String,
}
