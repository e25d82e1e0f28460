//! Users' keys: encrypted backups and the directory of public keys.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{
    bad_text::BadText,
    ids::UserId,
    text::{Blob, DeviceId, Key32, KeyId, Scheme},
    time::Timestamp,
};

/// A new key, signed by an earlier key of the same principal. The server stores and shows it.
/// Clients verify it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Introduction {
    /// The id of the earlier pair of keys.
    pub by_key_id: KeyId,
    /// The earlier key's Ed25519 signature: base64 of 64 bytes.
    pub signature: Blob,
}

/// The most schemes that a principal may name.
pub const MAX_SCHEMES: usize = 8;

/// The Argon2id parameters that derive a backup's key, within the bounds of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Argon2Params {
    /// The memory in KiB.
    #[cfg_attr(feature = "schema", schema(minimum = 19_456, maximum = 1_048_576))]
    pub m: i32,
    /// The number of passes.
    #[cfg_attr(feature = "schema", schema(minimum = 2, maximum = 10))]
    pub t: i32,
    /// The number of lanes.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 16))]
    pub p: i32,
}

impl<'de> Deserialize<'de> for Argon2Params {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let params = unbounded(from)?;
        let Argon2Params { m, t, p } = params;
        if m < 19_456 || t < 2 || p < 1 {
            let message = "m must be at least 19456, t 2, p 1";
            return Err(D::Error::custom(BadText::new("floor", message)));
        }
        // No client restores a backup beyond these.
        if m > 1_048_576 || t > 10 || p > 16 {
            let message = "m may be 1048576, t 10, p 16";
            return Err(D::Error::custom(BadText::new("ceiling", message)));
        }
        Ok(params)
    }
}

/// Reads parameters of any cost. A stored backup may be older than the bounds, and must not hide the
/// others of its list.
fn unbounded<'de, D: Deserializer<'de>>(from: D) -> Result<Argon2Params, D::Error> {
    #[derive(Deserialize)]
    struct Given {
        m: i32,
        t: i32,
        p: i32,
    }
    let Given { m, t, p } = Given::deserialize(from)?;
    Ok(Argon2Params { m, t, p })
}

/// The body of `POST /keys/backup`: a device's keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PutKeyBackup {
    /// The encrypted X25519 private key.
    pub backup_a: Blob,
    /// The encrypted Ed25519 private key.
    pub backup_b: Blob,
    /// The salt of the derivation.
    pub argon2_salt: Key32,
    /// The cost of the derivation.
    pub argon2_params: Argon2Params,
    /// The X25519 public key.
    pub public_key: Key32,
    /// The Ed25519 public key.
    pub signing_public_key: Key32,
    /// The device's id. It replaces an id that the server chose.
    pub device_id: DeviceId,
    /// The version that it replaces, 0 for none; any if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
    /// The signature of an earlier key of the user, for other devices and peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub introduction: Option<Introduction>,
    /// The encryption schemes that the device speaks, at most 8; unchanged if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schemes: Option<Vec<Scheme>>,
}

/// The answer to `POST /keys/backup`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StoredKeyBackup {
    /// The device.
    pub device_id: String,
    /// The id of the pair of public keys: hex of the first 16 bytes of SHA-256 over both.
    pub key_id: String,
    /// The version; a device's first is 1.
    pub version: i32,
    /// The time at which it was stored.
    pub created_at: Timestamp,
}

/// The query of `GET /keys/backup`, in addition to the query of every list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyBackupQuery {
    /// Selects the backups of this device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<DeviceId>,
}

/// A stored backup: an item of `GET /keys/backup`, whose cursor is `<device_id>:<version>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyBackup {
    /// The device.
    pub device_id: String,
    /// The version of the backup.
    pub version: i32,
    /// The id of the pair of public keys.
    pub key_id: String,
    /// The encrypted X25519 private key.
    pub backup_a: Blob,
    /// The encrypted Ed25519 private key.
    pub backup_b: Blob,
    /// The salt of the derivation.
    pub argon2_salt: Blob,
    /// The cost of the derivation.
    #[serde(deserialize_with = "unbounded")]
    pub argon2_params: Argon2Params,
    /// The X25519 public key.
    pub public_key: Blob,
    /// The Ed25519 public key.
    pub signing_public_key: Blob,
    /// The time at which it was stored.
    pub created_at: Timestamp,
}

/// A user's devices in the directory: the answer to `GET /keys/users/{user_id}/devices`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyDirectory {
    /// The user.
    pub user_id: UserId,
    /// The version of the list. It rises with every change.
    pub list_version: i32,
    /// The devices that have keys.
    pub devices: Vec<DeviceKeys>,
}

/// The public keys of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeviceKeys {
    /// The device.
    pub device_id: String,
    /// The id of the pair of keys.
    pub key_id: String,
    /// The X25519 public key.
    pub public_key: Blob,
    /// The Ed25519 public key.
    pub signing_public_key: Blob,
    /// The encryption schemes that the device speaks.
    #[serde(default)]
    pub schemes: Vec<String>,
    /// The signature of an earlier key; absent if none was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub introduction: Option<Introduction>,
    /// The time since which the device has these keys.
    pub created_at: Timestamp,
}

/// The data of `key.backup_accessed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BackupAccess {
    /// The device that read the backups.
    pub device_id: String,
    /// The time of the access.
    pub at: Timestamp,
}
