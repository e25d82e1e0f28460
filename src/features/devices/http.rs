//! `GET /users/me/devices`.

use axum::extract::State;
pub use blindpipe_protocol::devices::Device;

use super::{DeviceId, store};
use crate::{
    auth::user::User,
    db::Db,
    error::Result,
    http::{List, Page, Query},
    limits::slots::Slots,
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
    let connections = slots
        .connections(&[user.id.into()])
        .await
        .into_iter()
        .flatten();
    let online = connections.map(|connection| connection.device_id).collect();
    let cursor = page.cursor.as_ref().map(|device| device.0.as_str());
    let devices = store::list(&db, &user, &online, cursor, page.rows()).await?;
    Ok(page.of(devices, |device| DeviceId(device.device_id.clone())))
}
