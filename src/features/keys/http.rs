//! `POST /keys/backup`, `GET /keys/backup`, `GET /keys/users/{user_id}/devices`.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{
    rules::{Argon2Params, BackupId, Blob, Key},
    store,
};
use crate::{
    auth::{caller::Caller, user::User},
    db::Db,
    error::{Code, Result},
    http::{Data, Json, List, Page, Path, Query},
    ids::UserId,
    limits::{Limiter, table::Limit},
    validation::DeviceId,
    work::UnitOfWork,
};

/// A device's keys as it uploads them.
#[derive(Deserialize)]
pub struct Upload {
    pub backup_a: Blob,
    pub backup_b: Blob,
    pub argon2_salt: Key,
    pub argon2_params: Argon2Params,
    pub public_key: Key,
    pub signing_public_key: Key,
    pub device_id: DeviceId,
    /// The version that is to be replaced, 0 for none.
    pub version: Option<i32>,
}

/// What has been kept.
#[derive(Serialize)]
pub struct Kept {
    pub device_id: String,
    pub key_id: String,
    pub version: i32,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
}

/// `POST /keys/backup`: keeps a device's public keys and the encrypted private ones.
///
/// Caller: user. Limit: `default_user`, 120/min. Body: the key backup of the interface, and optionally the `version` that
/// it replaces. The first of a device that we named names it. Answers 201 (new) or 200 (replaced) with [`Kept`].
/// Errors: `DEVICE_MISMATCH`, `VERSION_MISMATCH`, `REAUTH_REQUIRED` (a login older than 5 min, and other public keys or
/// the eleventh version, which would push the first one out).
/// Tells `key.device_added`, and `key.device_removed` of the keys before.
pub async fn put_backup(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Json(body): Json<Upload>,
) -> Result<Response> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let kept = work.run("keys.put_backup", async |tx| {
        store::put(tx, &user, &body).await
    });
    let kept = kept.await?;
    let status = if kept.version == 1 {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Data(kept)).into_response())
}

/// A kept backup, as its owner gets it back.
#[derive(Serialize)]
pub struct Backup {
    pub device_id: String,
    pub version: i32,
    pub key_id: String,
    pub backup_a: Blob,
    pub backup_b: Blob,
    pub argon2_salt: Blob,
    pub argon2_params: Argon2Params,
    pub public_key: Blob,
    pub signing_public_key: Blob,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
}

/// Of which device.
#[derive(Deserialize)]
pub struct Which {
    device_id: Option<DeviceId>,
}

/// `GET /keys/backup?device_id=`: the user's key backups, newest first, at most ten of a device.
///
/// Caller: user with a login less than 10 min old. Limit: `keys_backup_read`, 10/h. Query `device_id`, `limit`, `cursor`
/// (`<device_id>:<version>` of the last one seen). Answers 200 with a list of [`Backup`]. Errors: `REAUTH_REQUIRED`.
/// Tells `key.backup_accessed`.
pub async fn read_backups(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Query(which): Query<Which>,
    Query(page): Query<Page<BackupId>>,
) -> Result<List<Backup>> {
    user.must_be_recent()?;
    limiter.check(Limit::KeysBackupRead, user.id).await?;
    let device = which.device_id.map(|device| device.0);
    let backups = work.run("keys.read_backups", async |tx| {
        let (device, cursor) = (device.as_deref(), page.cursor.as_ref());
        let backups = store::backups(tx, user.id, device, cursor, page.rows()).await?;
        if !backups.is_empty() {
            store::tell_accessed(tx, &user).await?;
        }
        Ok(backups)
    });
    Ok(page.of(backups.await?, |backup| {
        BackupId(backup.device_id.clone(), backup.version)
    }))
}

/// A user's devices as the directory shows them.
#[derive(Serialize)]
pub struct Directory {
    pub user_id: UserId,
    /// Rises with every change.
    pub list_version: i32,
    pub devices: Vec<DeviceKeys>,
}

/// One of them.
#[derive(Serialize)]
pub struct DeviceKeys {
    pub device_id: String,
    pub key_id: String,
    pub public_key: Blob,
    pub signing_public_key: Blob,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
}

/// `GET /keys/users/{user_id}/devices`: the public keys of a user's devices.
///
/// Caller: the user, a user who shares a conversation, or an agent with an active relation. Limit: `keys_lookup`, 60/min
/// per caller. Answers 200 with a [`Directory`]. Errors: `NOT_FOUND`, also for strangers.
pub async fn directory(
    caller: Caller,
    limiter: Limiter,
    State(db): State<Db>,
    Path(user): Path<UserId>,
) -> Result<Data<Directory>> {
    limiter
        .check(Limit::KeysLookup, caller.principal().wire_id())
        .await?;
    let directory = store::directory(&db, caller.principal(), user).await?;
    Ok(Data(directory.ok_or(Code::NotFound)?))
}
