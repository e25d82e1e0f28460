//! Devices: `/users/me/devices`.

use serde::{Deserialize, Serialize};

use crate::{
    ids::{SessionId, UserId},
    time::Timestamp,
};

/// A device as its owner sees it: an item of `GET /users/me/devices`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Device {
    /// The device's id; the next page starts after it.
    pub device_id: String,
    /// The user's name for it; null if none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub display_name: Option<String>,
    /// The device's platform; null if not given.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub platform: Option<String>,
    /// The time of its first sign-in.
    pub created_at: Timestamp,
    /// The time of its session's start or last refresh.
    pub last_seen_at: Timestamp,
    /// Whether it is the caller's device.
    pub current: bool,
    /// Whether the directory has keys of it.
    pub has_keys: bool,
    /// Whether it has a socket on any node.
    pub online: bool,
    /// Its newest session, which may have ended; null if it is forgotten.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub session_id: Option<SessionId>,
}

/// The answer to `DELETE /users/me/devices/{device_id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RevokedDevice {
    /// The device.
    pub device_id: String,
    /// The time of the revocation.
    pub revoked_at: Timestamp,
    /// Its newest session, whose changes the user can undo; null if it is forgotten.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub session_id: Option<SessionId>,
    /// The user's passkeys, which a thief may have added to.
    pub passkeys: i64,
    /// The user's agents, which a thief may have added to.
    pub agents: i64,
}

/// A user's means that sign in or act without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillThere {
    /// The user's passkeys.
    pub passkeys: i64,
    /// The user's agents.
    pub agents: i64,
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
