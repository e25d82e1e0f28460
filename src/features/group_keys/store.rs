use std::collections::{BTreeMap, BTreeSet};

use blindpipe_protocol::group_keys::{KeyRotation, OwnGroupKeys, RotationRequest, WrappedKey};
use chrono::{DateTime, Utc};
use serde_json::json;
use tokio_postgres::Row;

use super::rules::{self, Recipient};
use crate::{
    db::Conn,
    error::{Code, Error, Result},
    events::Event,
    features::conversations,
    ids::{AgentId, ConversationId, EventId, Principal, PrincipalId, UserId},
    work::Tx,
};

/// A requested rotation.
pub struct Rotation {
    pub by: UserId,
    pub base_epoch: i32,
    pub reason: Option<String>,
    pub keys: BTreeMap<Recipient, String>,
}

/// Moves a conversation to its next epoch. The lock on it serialises racing rotations.
pub async fn rotate(
    tx: &Tx,
    id: ConversationId,
    rotation: Rotation,
) -> Result<(i32, DateTime<Utc>)> {
    let place = conversations::lock(tx, id, Principal::User(rotation.by)).await?;
    if place.epoch != rotation.base_epoch {
        return Err(Error::from(Code::VersionMismatch).with("current_epoch", place.epoch));
    }
    let given: BTreeSet<Recipient> = rotation.keys.keys().cloned().collect();
    if let Some(rules::Mismatch { missing, extra }) =
        rules::mismatch(&recipients(tx, id).await?, &given)
    {
        let refusal = Error::from(Code::RecipientsMismatch);
        return Err(refusal
            .with("missing", json!(missing))
            .with("extra", json!(extra)));
    }
    let epoch = place.epoch + 1;
    let principals: Vec<PrincipalId> = rotation
        .keys
        .keys()
        .map(|to| to.principal_id.id())
        .collect();
    let devices: Vec<&str> = rotation
        .keys
        .keys()
        .map(|to| to.device_id.as_deref().unwrap_or_default())
        .collect();
    let wrapped: Vec<&str> = rotation.keys.values().map(String::as_str).collect();
    tx.execute(
        "-- group_keys.rotate
        insert into group_key (conversation_id, epoch, principal_id, device_id, wrapped_key)
        select $1, $2, * from unnest($3::uuid[], $4::text[], $5::text[])",
        &[&id, &epoch, &principals, &devices, &wrapped],
    )
    .await?;
    let rotated_at = conversations::begin_epoch(tx, id, epoch).await?;
    emit_rotated(tx, id, epoch, rotation).await?;
    Ok((epoch, rotated_at))
}

/// The recipients of a key now: the members' devices with keys, and the agents with keys.
async fn recipients(tx: &Tx, id: ConversationId) -> Result<BTreeSet<Recipient>> {
    let rows = tx
        .query(
            "-- group_keys.recipients
            select 'user' as principal_kind, m.principal_id, d.device_id from member m join device d on d.user_id = m.principal_id
            where m.conversation_id = $1 and d.key_id is not null and d.revoked_at is null
            union all
            select 'agent', m.principal_id, null from active_member m
            join agent_key k on k.agent_id = m.principal_id and k.valid_until is null
            where m.conversation_id = $1",
            &[&id],
        )
        .await?;
    let recipient = |row: &Row| Recipient {
        principal_id: Principal::from_row(row.get("principal_kind"), row.get("principal_id")),
        device_id: row.get("device_id"),
    };
    Ok(rows.iter().map(recipient).collect())
}

/// Publishes an event to each member, with the keys that were wrapped for it.
async fn emit_rotated(tx: &Tx, id: ConversationId, epoch: i32, rotation: Rotation) -> Result<()> {
    let mut keys: BTreeMap<Principal, Vec<WrappedKey>> = BTreeMap::new();
    for (
        Recipient {
            principal_id,
            device_id,
        },
        wrapped_key,
    ) in rotation.keys
    {
        keys.entry(principal_id).or_default().push(WrappedKey {
            device_id,
            wrapped_key,
        });
    }
    for who in conversations::recipients(tx, id).await? {
        let event = Event::KeyRotated(KeyRotation {
            conversation_id: id,
            epoch,
            by: rotation.by,
            reason: rotation.reason.clone(),
            wrapped_keys: keys.remove(&who).unwrap_or_default(),
        });
        tx.emit(event, Some(id), vec![who])?;
    }
    Ok(())
}

/// The wrapped keys of one member. 404 for others.
pub async fn own(
    client: &Conn,
    id: ConversationId,
    who: Principal,
    epoch: Option<i32>,
) -> Result<OwnGroupKeys> {
    let rows = client
        .query(
            "-- group_keys.own
            select c.epoch, c.rotation_required, k.device_id, k.wrapped_key, coalesce($3, c.epoch) as asked_epoch
            from active_member m join conversation c using (conversation_id)
            left join group_key k on k.conversation_id = $1 and k.principal_id = $2 and k.epoch = coalesce($3, c.epoch)
            where m.conversation_id = $1 and m.principal_id = $2
            order by k.device_id",
            &[&id, &who.id(), &epoch],
        )
        .await?;
    let first = rows.first().ok_or(Code::NotFound)?;
    let keys = rows.iter().filter_map(|row| {
        let device: Option<String> = row.get("device_id");
        let device_id = device.filter(|device| !device.is_empty());
        Some(WrappedKey {
            device_id,
            wrapped_key: row.get::<_, Option<String>>("wrapped_key")?,
        })
    });
    Ok(OwnGroupKeys {
        conversation_id: id,
        epoch: first.get("asked_epoch"),
        current_epoch: first.get("epoch"),
        rotation_required: first.get("rotation_required"),
        wrapped_keys: keys.collect(),
    })
}

/// Publishes the request to the peer. Returns its id, which is the event's id, and the time.
pub async fn request(
    tx: &Tx,
    id: ConversationId,
    by: UserId,
    reason: Option<String>,
) -> Result<(EventId, DateTime<Utc>)> {
    let by = Principal::User(by);
    conversations::lock(tx, id, by).await?;
    let peers = conversations::recipients(tx, id)
        .await?
        .into_iter()
        .filter(|who| *who != by);
    let request = EventId::generate(tx.random());
    let event = Event::KeyRotationRequested(RotationRequest {
        request_id: request,
        conversation_id: id,
        by,
        reason,
    });
    tx.emit_as(request, event, Some(id), peers.collect())?;
    let at = tx
        .query_one(
            "-- group_keys.now
            select app_now() as now",
            &[],
        )
        .await?
        .get("now");
    Ok((request, at))
}

/// Requires another key in the next conversation after `after` whose current key a revoked device
/// holds. Returns the conversation, or none if no more is left.
pub async fn replace_next(
    tx: &Tx,
    user: UserId,
    device: &str,
    after: ConversationId,
) -> Result<Option<ConversationId>> {
    // A device that came back has new keys. A key that was wrapped for those is valid.
    let next = tx
        .query_opt(
            "-- group_keys.next_held
            select c.conversation_id, c.epoch from member m join conversation c using (conversation_id)
            join group_key k on k.conversation_id = c.conversation_id and k.epoch = c.epoch
                and k.principal_id = $1 and k.device_id = $2
            where m.principal_id = $1 and m.conversation_id > $3 and not c.rotation_required
                and not exists (select from device d where d.user_id = $1 and d.device_id = $2 and d.revoked_at is null
                                                       and d.key_since <= k.rotated_at)
            order by m.conversation_id limit 1",
            &[&user, &device, &after],
        )
        .await?;
    let Some(row) = next else { return Ok(None) };
    let (id, epoch): (ConversationId, i32) = (row.get("conversation_id"), row.get("epoch"));
    // A concurrent rotation may have ended this epoch.
    conversations::require_rotation_of(tx, id, epoch).await?;
    Ok(Some(id))
}

/// Requires another key in the next conversation after `after` whose current key was wrapped before
/// the agent had its own. Returns the conversation, or none if no more is left.
pub async fn replace_next_of_agent(
    tx: &Tx,
    agent: AgentId,
    after: ConversationId,
) -> Result<Option<ConversationId>> {
    let next = tx
        .query_opt(
            "-- group_keys.next_of_agent
            select c.conversation_id from active_member m join conversation c using (conversation_id)
            join agent_key own on own.agent_id = m.principal_id and own.valid_until is null
            where m.principal_id = $1 and m.conversation_id > $2 and c.epoch > 0 and not c.rotation_required
                and not exists (select from group_key k where k.conversation_id = c.conversation_id and k.epoch = c.epoch
                                    and k.principal_id = $1 and k.rotated_at >= own.created_at)
            order by m.conversation_id limit 1",
            &[&agent, &after],
        )
        .await?;
    let Some(row) = next else { return Ok(None) };
    let id = row.get("conversation_id");
    conversations::require_rotation(tx, id).await?;
    Ok(Some(id))
}
