//! `GET /users/me/devices`, `DELETE /users/me/devices/{device_id}`.

use axum::extract::State;
pub use blindpipe_protocol::devices::Device;
use blindpipe_protocol::devices::RevokedDevice;

use super::{DeviceId, store};
use crate::{
    auth::user::User,
    db::Db,
    error::{Code, Error, Result},
    http::{Data, List, Page, Path, Query},
    limits::slots::Slots,
    work::UnitOfWork,
};

/// `GET /users/me/devices`: the user's devices, newest first, those without a name of their own
/// included.
///
/// Caller: user. Query `limit`, `cursor` (a `device_id`). Answers 200 with a list of
/// [`Device`]. Errors: none of its own.
pub async fn list(
    user: User,
    State(db): State<Db>,
    State(slots): State<Slots>,
    Query(page): Query<Page<DeviceId>>,
) -> Result<List<Device>> {
    let connections = slots.connections(&[user.id.0]).await.into_iter().flatten();
    let online = connections.map(|connection| connection.device_id).collect();
    let cursor = page.cursor.as_ref().map(|device| device.0.as_str());
    let devices = store::list(&db, &user, &online, cursor, page.rows()).await?;
    Ok(page.of(devices, |device| DeviceId(device.device_id.clone())))
}

/// `DELETE /users/me/devices/{device_id}`: ends the device's session and takes its keys out of the
/// directory. Its backups stay. Signing in on it again makes it a new device.
///
/// Caller: user. Answers 200 with [`RevokedDevice`]. Its sockets get `session.invalidated`. Errors:
/// `NOT_FOUND`. Publishes `key.device_removed`. Within seconds publishes `conversation.updated`
/// where the device holds the current key, because another one is required.
pub async fn revoke(
    user: User,
    State(work): State<UnitOfWork>,
    Path(device_id): Path<String>,
) -> Result<Data<RevokedDevice>> {
    let device = DeviceId::read(device_id).ok_or_else(|| Error::from(Code::NotFound))?;
    let revoked = work.run("devices.revoke", async |tx| {
        store::revoke(tx, &user, &device.0).await
    });
    revoked.await.map(Data)
}
