//! `GET /users/me/devices`, `DELETE /users/me/devices/{device_id}`.

use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::store;
use crate::{
    auth::user::User,
    db::Db,
    error::{Code, Error, Result},
    http::{Data, List, Page, Path, Query},
    limits::{Limiter, slots::Slots, table::Limit},
    validation::DeviceId,
    work::UnitOfWork,
};

/// A device as its owner sees it.
#[derive(Serialize)]
pub struct Device {
    pub device_id: String,
    pub display_name: Option<String>,
    pub platform: Option<String>,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub created_at: DateTime<Utc>,
    #[serde(serialize_with = "crate::clock::as_iso")]
    pub last_seen_at: DateTime<Utc>,
    /// Whether it is the caller's.
    pub current: bool,
    pub has_keys: bool,
    /// Whether it has a socket on any node.
    pub online: bool,
}

/// `GET /users/me/devices`: the user's devices, newest first, those without a name of their own included.
///
/// Caller: user. Limit: `default_user`, 120/min. Query `limit`, `cursor` (a `device_id`). Answers 200 with a list of
/// [`Device`]. Errors: none of its own.
pub async fn list(
    user: User,
    limiter: Limiter,
    State(db): State<Db>,
    State(slots): State<Slots>,
    Query(page): Query<Page<DeviceId>>,
) -> Result<List<Device>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let connections = slots.connections(&[user.id.0]).await.into_iter().flatten();
    let online = connections.map(|connection| connection.device_id).collect();
    let cursor = page.cursor.as_ref().map(|device| device.0.as_str());
    let devices = store::list(&db, &user, &online, cursor, page.rows()).await?;
    Ok(page.of(devices, |device| DeviceId(device.device_id.clone())))
}

/// A device that no longer counts.
#[derive(Serialize)]
pub struct RevokedDevice {
    device_id: String,
    #[serde(serialize_with = "crate::clock::as_iso")]
    revoked_at: DateTime<Utc>,
}

/// `DELETE /users/me/devices/{device_id}`: ends the device's session and takes its keys out of the directory. Its
/// backups stay; signing in on it again makes it a new device.
///
/// Caller: user. Limit: `default_user`, 120/min. Answers 200 with [`RevokedDevice`]. Its sockets get
/// `session.invalidated`. Errors: `NOT_FOUND`. Tells `key.device_removed`, and within seconds `conversation.updated` where
/// the device holds the current key: another one is required.
pub async fn revoke(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path(device_id): Path<String>,
) -> Result<Data<RevokedDevice>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let device = DeviceId::read(device_id).ok_or_else(|| Error::from(Code::NotFound))?;
    let revoked = work.run("devices.revoke", async |tx| {
        store::revoke(tx, &user, &device.0).await
    });
    Ok(Data(RevokedDevice {
        revoked_at: revoked.await?,
        device_id: device.0,
    }))
}
