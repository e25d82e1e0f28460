//! Users' keys: encrypted backups and the directory of public keys.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{
    ids::UserId,
    text::{Blob, DeviceId, Key32},
    time::Timestamp,
};

/// How the key that encrypts a backup is derived: by Argon2id, and not too cheaply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Argon2Params {
    /// Memory in KiB.
    #[cfg_attr(feature = "schema", schema(minimum = 19456, maximum = 4194304))]
    pub m: i32,
    /// Passes.
    #[cfg_attr(feature = "schema", schema(minimum = 2, maximum = 1000))]
    pub t: i32,
    /// Lanes.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 255))]
    pub p: i32,
}

impl<'de> Deserialize<'de> for Argon2Params {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Given {
            m: i32,
            t: i32,
            p: i32,
        }
        let Given { m, t, p } = Given::deserialize(from)?;
        if m < 19_456 || t < 2 || p < 1 {
            return Err(D::Error::custom("floor|m must be at least 19456, t 2, p 1"));
        }
        // Argon2's own bounds, and no more memory than any device has.
        if m > 4 * 1024 * 1024 || t > 1000 || p > 255 || m < 8 * p {
            return Err(D::Error::custom(
                "ceiling|m may be 4194304, t 1000, p 255 and an eighth of m",
            ));
        }
        Ok(Argon2Params { m, t, p })
    }
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
    /// The device; names a device that the server had named.
    pub device_id: DeviceId,
    /// The version that is to be replaced, 0 for none; any if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
}

/// What `POST /keys/backup` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StoredKeyBackup {
    /// The device.
    pub device_id: String,
    /// The pair of public keys: hex of the first 16 bytes of SHA-256 over both.
    pub key_id: String,
    /// The version, 1 for a device's first.
    pub version: i32,
    /// When it was stored.
    pub created_at: Timestamp,
}

/// The query of `GET /keys/backup`, beside that of every list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyBackupQuery {
    /// Backups of this device only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<DeviceId>,
}

/// A stored backup: an item of `GET /keys/backup`, whose cursor is `<device_id>:<version>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyBackup {
    /// The device.
    pub device_id: String,
    /// The version.
    pub version: i32,
    /// The pair of public keys.
    pub key_id: String,
    /// The encrypted X25519 private key.
    pub backup_a: Blob,
    /// The encrypted Ed25519 private key.
    pub backup_b: Blob,
    /// The salt of the derivation.
    pub argon2_salt: Blob,
    /// The cost of the derivation.
    pub argon2_params: Argon2Params,
    /// The X25519 public key.
    pub public_key: Blob,
    /// The Ed25519 public key.
    pub signing_public_key: Blob,
    /// When it was stored.
    pub created_at: Timestamp,
}

/// A user's devices in the directory: what `GET /keys/users/{user_id}/devices` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyDirectory {
    /// The user.
    pub user_id: UserId,
    /// Rises with every change.
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
    /// The pair of keys.
    pub key_id: String,
    /// The X25519 public key.
    pub public_key: Blob,
    /// The Ed25519 public key.
    pub signing_public_key: Blob,
    /// Since when the device has them.
    pub created_at: Timestamp,
}

/// The data of `key.backup_accessed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BackupAccess {
    /// The device that read the backups.
    pub device_id: String,
    /// When it did.
    pub at: Timestamp,
}
