//! `POST /keys/groups/{conversation_id}/rotate`, `GET /keys/groups/{conversation_id}`, `POST /keys/rotation/request`.

use std::collections::BTreeMap;

use axum::extract::State;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::{rules::Recipient, store};
use crate::{
    auth::{caller::Caller, user::User},
    db::Db,
    error::{Error, Result},
    features::conversations,
    http::{Created, Data, Json, Path, Query},
    ids::{ConversationId, EventId, Principal},
    limits::{
        Limiter,
        quotas::{MAX_ROTATION_BYTES, MAX_WRAPPED_KEY_CHARS, ROTATION_REQUEST_TTL},
        table::Limit,
    },
    validation::Text,
    work::UnitOfWork,
};

/// A new key of a conversation.
#[derive(Deserialize)]
pub struct Rotate {
    base_epoch: i32,
    reason: Option<Text<0, 200>>,
    wrapped_keys: Vec<GivenKey>,
}

#[derive(Deserialize)]
struct GivenKey {
    principal_id: Principal,
    device_id: Option<Text<1, 128>>,
    wrapped_key: Text<1, MAX_WRAPPED_KEY_CHARS>,
}

/// By recipient; two keys for one are a fault.
fn by_recipient(wrapped: Vec<GivenKey>) -> Result<BTreeMap<Recipient, String>> {
    let mut keys = BTreeMap::new();
    for (n, given) in wrapped.into_iter().enumerate() {
        let device_id = given.device_id.map(|text| text.0);
        let recipient = Recipient {
            principal_id: given.principal_id,
            device_id,
        };
        if keys.insert(recipient, given.wrapped_key.0).is_some() {
            let path = format!("wrapped_keys[{n}]");
            return Err(Error::field(
                path,
                "unique",
                "a second key for one recipient",
            ));
        }
    }
    Ok(keys)
}

/// What a rotation came to.
#[derive(Serialize)]
pub struct Rotated {
    epoch: i32,
    #[serde(serialize_with = "crate::clock::as_iso")]
    rotated_at: DateTime<Utc>,
}

/// `POST /keys/groups/{conversation_id}/rotate`: gives a conversation its next key.
///
/// Caller: user who is a member. Limit: `keys_group_rotate`, 6/h per conversation, once caller and shape are right. Body
/// `{base_epoch, reason?, wrapped_keys:[{principal_id, device_id?, wrapped_key}]}`, one for each device with keys of each
/// member and one for each agent that has keys. Answers 201 with [`Rotated`]. Tells each member `key.rotated` with its
/// own keys. Errors: `NOT_FOUND`, `VERSION_MISMATCH` (`current_epoch`), `RECIPIENTS_MISMATCH` (`missing[]`, `extra[]`).
pub async fn rotate(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path(id): Path<ConversationId>,
    Json(body): Json<Rotate, MAX_ROTATION_BYTES>,
) -> Result<Created<Rotated>> {
    let rotation = store::Rotation {
        by: user.id,
        base_epoch: body.base_epoch,
        reason: body.reason.map(|text| text.0),
        keys: by_recipient(body.wrapped_keys)?,
    };
    conversations::kind(work.db(), id, Principal::User(user.id)).await?;
    limiter.check(Limit::KeysGroupRotate, id).await?;
    let rotated = work.run("group_keys.rotate", async |tx| {
        store::rotate(tx, id, rotation).await
    });
    let (epoch, rotated_at) = rotated.await?;
    Ok(Created(Rotated { epoch, rotated_at }))
}

/// The query of [`read`].
#[derive(Deserialize)]
pub struct OfEpoch {
    epoch: Option<i32>,
}

/// `GET /keys/groups/{conversation_id}`: the caller's own wrapped keys, of the current epoch or an earlier one.
///
/// Caller: a member. Limit: `default_user`, 120/min; agents their tier. Query `epoch`. Answers 200 with
/// [`store::OwnKeys`]. Errors: `NOT_FOUND`.
pub async fn read(
    caller: Caller,
    limiter: Limiter,
    State(db): State<Db>,
    Path(id): Path<ConversationId>,
    Query(query): Query<OfEpoch>,
) -> Result<Data<store::OwnKeys>> {
    limiter.check_default(caller.principal()).await?;
    Ok(Data(
        store::own(&db, id, caller.principal(), query.epoch).await?,
    ))
}

#[derive(Deserialize)]
pub struct AskRotation {
    conversation_id: ConversationId,
    reason: Option<Text<0, 200>>,
}

/// A request that the peer rotates.
#[derive(Serialize)]
pub struct AskedRotation {
    request_id: EventId,
    #[serde(serialize_with = "crate::clock::as_iso")]
    expires_at: DateTime<Utc>,
}

/// `POST /keys/rotation/request`: asks the other user of a direct conversation to rotate its key.
///
/// Caller: user, one of the two. Limit: `keys_rotation_request`, 6/h per conversation. Body `{conversation_id, reason?}`.
/// Answers 201 with [`AskedRotation`]. Tells the peer `key.rotation_requested`. Errors: `NOT_FOUND`.
pub async fn request(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Json(body): Json<AskRotation>,
) -> Result<Created<AskedRotation>> {
    let id = body.conversation_id;
    if conversations::kind(work.db(), id, Principal::User(user.id)).await? != "direct" {
        return Err(Error::field(
            "conversation_id",
            "direct",
            "must be a direct conversation of two users",
        ));
    }
    limiter.check(Limit::KeysRotationRequest, id).await?;
    let reason = body.reason.map(|text| text.0);
    let requested = work.run("group_keys.request", async |tx| {
        store::request(tx, id, user.id, reason).await
    });
    let (request_id, at) = requested.await?;
    let life = TimeDelta::from_std(ROTATION_REQUEST_TTL).unwrap_or_default();
    Ok(Created(AskedRotation {
        request_id,
        expires_at: at + life,
    }))
}
