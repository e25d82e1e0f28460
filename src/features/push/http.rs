//! `PUT`, `GET`, `DELETE /users/me/devices/{device_id}/push`, `GET /push/key`.

use axum::extract::State;
use blindpipe_protocol::push::{DeletedPush, PushKey, PushSubscription, PutPush};

use super::{
    Push,
    seal::Endpoint,
    store::{self, SubscriptionRow},
};
use crate::{
    auth::user::User,
    egress::EgressError,
    error::{Code, Error, Result},
    features::devices::DeviceId,
    http::{Data, Json, Path},
};

fn shown(device: DeviceId, row: SubscriptionRow) -> Data<PushSubscription> {
    Data(PushSubscription {
        device_id: device.0,
        kind: row.kind,
        last_error: row.last_error,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    })
}

/// The id in a path. No device has an id of another form.
fn named(device: String) -> Result<DeviceId> {
    DeviceId::read(device).ok_or_else(|| Code::NotFound.into())
}

/// Refuses an address that may not be called.
async fn check(push: &Push, url: &str) -> Result<()> {
    let checked = push.egress.check(url).await;
    checked.map(drop).map_err(|error| {
        let message = match error {
            EgressError::InvalidUrl(rule) => rule,
            EgressError::ForbiddenAddress => "leads to an address that is not public",
            EgressError::Dns => "has a host without an address",
            _ => "could not be checked",
        };
        Error::field("endpoint", error.word(), message)
    })
}

/// `PUT /users/me/devices/{device_id}/push`: subscribes a device to pushes, or changes its address.
///
/// Caller: user; a device of the caller with a live session. Limit: `push_register`, 30/h per user.
/// Body [`PutPush`]. Answers 200 with [`PushSubscription`]. Errors: `VALIDATION_ERROR` (`endpoint`,
/// `p256dh`, `auth`), `NOT_FOUND`.
pub async fn put(
    user: User,
    State(push): State<Push>,
    Path(device): Path<String>,
    Json(body): Json<PutPush>,
) -> Result<Data<PushSubscription>> {
    let device = named(device)?;
    let endpoint = Endpoint::parse(&body)?;
    check(&push, body.endpoint.expose()).await?;
    let put = push.work.run("push.put", async |tx| {
        let session = store::session_of(tx, &user, &device.0).await?;
        let sealed = push.seal.seal(session, &endpoint)?;
        let key = push.keys.current();
        store::put(tx, user.id, session, body.kind, &sealed, key).await
    });
    let row = put.await?;
    push.waker.note(std::iter::once(user.id));
    Ok(shown(device, row))
}

/// `GET /users/me/devices/{device_id}/push`: the subscription of a device, without its address and
/// keys.
///
/// Caller: user. Answers 200 with [`PushSubscription`]. Errors: `NOT_FOUND`.
pub async fn get(
    user: User,
    State(push): State<Push>,
    Path(device): Path<String>,
) -> Result<Data<PushSubscription>> {
    let device = named(device)?;
    let row = store::find(push.work.db(), user.id, &device.0).await?;
    Ok(shown(device, row.ok_or(Code::NotFound)?))
}

/// `DELETE /users/me/devices/{device_id}/push`: ends the subscription of a device.
///
/// Caller: user. Answers 200 with [`DeletedPush`]. Errors: `NOT_FOUND`.
pub async fn delete(
    user: User,
    State(push): State<Push>,
    Path(device): Path<String>,
) -> Result<Data<DeletedPush>> {
    let device = named(device)?;
    let deleted = push.work.run("push.delete", async |tx| {
        store::delete(tx, &user, &device.0).await
    });
    let deleted_at = deleted.await?.ok_or(Code::NotFound)?;
    Ok(Data(DeletedPush {
        device_id: device.0,
        deleted_at: deleted_at.into(),
    }))
}

/// `GET /push/key`: the server's key, which a device subscribes with.
///
/// Public. Answers 200 with [`PushKey`].
pub async fn key(State(push): State<Push>) -> Data<PushKey> {
    Data(PushKey {
        public_key: push.keys.public().to_owned(),
    })
}
