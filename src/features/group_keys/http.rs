//! `POST /keys/groups/{conversation_id}/rotate`, `GET /keys/groups/{conversation_id}`, `GET
//! /keys/groups/{conversation_id}/recipients`, `POST /keys/rotation/request`.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use blindpipe_protocol::{
    conversations::ConversationKind,
    group_keys::{
        GroupKeysQuery, KeyHolders, KeyHoldersQuery, OwnGroupKeys, RecipientKey, RequestRotation,
        RotateKey, RotatedKey, RotationRequested,
    },
};
use chrono::TimeDelta;

use super::{holders, rules::Recipient, store};
use crate::{
    access_log::{self, AccessKind, Read},
    auth::{
        caller::Caller,
        user::{User, lock_live_session},
    },
    db::Db,
    error::{Code, Error, Result},
    features::conversations,
    http::{Created, Data, Json, Page, Path, Query, body, json},
    ids::{ConversationId, Principal},
    limits::{
        Limiter,
        quotas::{MAX_ROTATION_BYTES, ROTATION_REQUEST_TTL},
        table::Limit,
    },
    work::UnitOfWork,
};

/// Sorts the keys by recipient. Two keys for one recipient are an error.
fn by_recipient(wrapped: Vec<RecipientKey>) -> Result<BTreeMap<Recipient, String>> {
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

/// `POST /keys/groups/{conversation_id}/rotate`: gives a conversation its next key.
///
/// Caller: user who is a member, which is checked before the body is read. Limits: the default, and
/// `keys_group_rotate`, 6/h per conversation, charged after the checks of caller and shape. Body
/// `{base_epoch, reason?, wrapped_keys:[{principal_id, device_id?, wrapped_key}]}`. It has one key
/// for each member's device with keys, and one for each agent with keys. Answers 201 with
/// [`RotatedKey`]. Publishes `key.rotated` to each member with its own keys. Errors: `NOT_FOUND`,
/// `VERSION_MISMATCH` (`current_epoch`), `RECIPIENTS_MISMATCH` (`missing[]`, `extra[]`).
pub async fn rotate(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path(id): Path<ConversationId>,
    request: Request,
) -> Result<Created<RotatedKey>> {
    // Nobody else makes the node read two megabytes.
    conversations::kind(work.db(), id, Principal::User(user.id)).await?;
    let (parts, body) = request.into_parts();
    let body = body::read(&parts, body, MAX_ROTATION_BYTES, Code::PayloadTooLarge).await?;
    let body: RotateKey = json::parse(&body)?;
    let rotation = store::Rotation {
        by: user.id,
        base_epoch: body.base_epoch,
        reason: body.reason.map(|text| text.0),
        keys: by_recipient(body.wrapped_keys)?,
    };
    limiter.check(Limit::KeysGroupRotate, id).await?;
    let rotated = work.run("group_keys.rotate", async |tx| {
        lock_live_session(tx, user.id, user.session).await?;
        store::rotate(tx, id, rotation).await
    });
    let (epoch, rotated_at) = rotated.await?;
    Ok(Created(RotatedKey {
        epoch,
        rotated_at: rotated_at.into(),
    }))
}

/// `GET /keys/groups/{conversation_id}`: the caller's own wrapped keys, of the current epoch or an
/// earlier one.
///
/// Caller: a member. Query `epoch`. Answers 200 with
/// [`OwnGroupKeys`]. Errors: `NOT_FOUND`.
pub async fn read(
    caller: Caller,
    State(db): State<Db>,
    Path(id): Path<ConversationId>,
    Query(query): Query<GroupKeysQuery>,
) -> Result<Data<OwnGroupKeys>> {
    let (who, epoch) = (caller.principal(), query.epoch);
    let Caller::Agent(agent) = caller else {
        let own = store::own(&db.read().await?, id, who, epoch).await?;
        return Ok(Data(own));
    };
    let read = db.run("group_keys.read_as_agent", async |tx| {
        let own = store::own(tx, id, who, epoch).await?;
        let read = Read {
            items: i64::try_from(own.wrapped_keys.len()).unwrap_or(i64::MAX),
            ..Read::of(id)
        };
        access_log::record(tx, agent.id, AccessKind::GroupKeys, &[read]).await?;
        Ok(own)
    });
    read.await.map(Data)
}

/// `GET /keys/groups/{conversation_id}/recipients`: the members with their public keys, also those
/// that were retired.
///
/// Caller: a member. Limit: `keys_lookup`, 60/min per caller. Query `limit` and `cursor`, or
/// `principal_id` for one principal, who may have left. Answers 200 with [`KeyHolders`]. Errors:
/// `NOT_FOUND`.
pub async fn recipients(
    caller: Caller,
    State(db): State<Db>,
    Path(id): Path<ConversationId>,
    Query(which): Query<KeyHoldersQuery>,
    Query(page): Query<Page<Principal>>,
) -> Result<Data<KeyHolders>> {
    let (who, about) = (caller.principal(), which.principal_id);
    let Caller::Agent(agent) = caller else {
        let shown = holders::read(&db.read().await?, id, who, about, &page).await?;
        return Ok(Data(shown));
    };
    let read = db.run("group_keys.recipients_as_agent", async |tx| {
        let shown = holders::read(tx, id, who, about, &page).await?;
        let read = Read {
            items: i64::try_from(shown.members.len()).unwrap_or(i64::MAX),
            ..Read::of(id)
        };
        access_log::record(tx, agent.id, AccessKind::Keys, &[read]).await?;
        Ok(shown)
    });
    read.await.map(Data)
}

/// `POST /keys/rotation/request`: asks the other user of a direct conversation to rotate its key.
///
/// Caller: user, one of the two. Limit: `keys_rotation_request`, 6/h per conversation. Body
/// `{conversation_id, reason?}`. Answers 201 with [`RotationRequested`]. Publishes
/// `key.rotation_requested` to the peer. Errors: `NOT_FOUND`.
pub async fn request(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Json(body): Json<RequestRotation>,
) -> Result<Created<RotationRequested>> {
    let id = body.conversation_id;
    if conversations::kind(work.db(), id, Principal::User(user.id)).await?
        != ConversationKind::Direct
    {
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
    Ok(Created(RotationRequested {
        request_id,
        expires_at: (at + life).into(),
    }))
}
