//! `POST /keys/backup`, `GET /keys/backup`, `GET /keys/users/{user_id}/devices`.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use blindpipe_protocol::keys::KeyBackupQuery;
pub use blindpipe_protocol::keys::{
    DeviceKeys, KeyBackup as Backup, KeyDirectory as Directory, PutKeyBackup as Upload,
    StoredKeyBackup as Kept,
};

use super::{rules::BackupId, store};
use crate::{
    access_log::{self, AccessKind},
    auth::{caller::Caller, user::User},
    db::Db,
    error::{Code, Result},
    http::{Data, Json, List, Page, Path, Query},
    ids::{Principal, UserId},
    limits::{Limiter, table::Limit},
    work::UnitOfWork,
};

/// `POST /keys/backup`: stores a device's public keys and the encrypted private ones.
///
/// Caller: user. Body: the key backup of the interface, and optionally the `version` that it
/// replaces. The first backup of a provisional device names the device. Answers 201 (new) or 200
/// (replaced) with [`Kept`]. Errors: `DEVICE_MISMATCH`, `VERSION_MISMATCH`. `REAUTH_REQUIRED` after
/// a login older than 5 min, for other public keys or an eleventh version, which may push out the
/// first. Publishes `key.device_added`, and `key.device_removed` for replaced keys.
pub async fn put_backup(
    user: User,
    State(work): State<UnitOfWork>,
    Json(body): Json<Upload>,
) -> Result<Response> {
    store::description(&body).check()?;
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

/// `GET /keys/backup?device_id=`: the user's key backups, newest first: the last ten of a device, and
/// those of the last 30 days that were the first or the last of their day.
///
/// Caller: user with a login less than 10 min old. Limit: `keys_backup_read`, 10/h. Query
/// `device_id`, `limit`, `cursor` (`<device_id>:<version>` of the last one seen). Answers 200 with
/// a list of [`Backup`]. Errors: `REAUTH_REQUIRED`. Publishes `key.backup_accessed`.
pub async fn read_backups(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Query(which): Query<KeyBackupQuery>,
    Query(page): Query<Page<BackupId>>,
) -> Result<List<Backup>> {
    user.must_be_recent()?;
    limiter.check(Limit::KeysBackupRead, user.id).await?;
    let device = which.device_id.map(|device| device.0);
    let backups = work.run("keys.read_backups", async |tx| {
        let (device, cursor) = (device.as_deref(), page.cursor.as_ref());
        let backups = store::backups(tx, user.id, device, cursor, page.rows()).await?;
        if !backups.is_empty() {
            store::emit_accessed(tx, &user).await?;
        }
        Ok(backups)
    });
    Ok(page.of(backups.await?, |backup| {
        BackupId(backup.device_id.clone(), backup.version)
    }))
}

/// `GET /keys/users/{user_id}/devices`: the public keys of a user's devices.
///
/// Caller: the user, a user who shares a conversation, or an agent with an active relation. Limit:
/// `keys_lookup`, 60/min per caller. Answers 200 with a [`Directory`]. Errors: `NOT_FOUND`, also
/// for unrelated users.
pub async fn directory(
    caller: Caller,
    State(db): State<Db>,
    Path(user): Path<UserId>,
) -> Result<Data<Directory>> {
    let directory = match caller {
        Caller::User(asker) => {
            store::directory(&db.read().await?, Principal::User(asker.id), user).await?
        }
        Caller::Agent(agent) => {
            let read = db.run("keys.directory_for_agent", async |tx| {
                let found = store::directory(tx, Principal::Agent(agent.id), user).await?;
                if let Some(found) = &found {
                    let (kind, items) = (AccessKind::Keys, found.devices.len());
                    access_log::record_user(tx, agent.id, kind, user, items).await?;
                }
                Ok(found)
            });
            read.await?
        }
    };
    Ok(Data(directory.ok_or(Code::NotFound)?))
}
