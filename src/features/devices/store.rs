use std::collections::HashSet;

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use super::{http::Device, lost};
use crate::{
    auth::user::{User, lock_live_session},
    db::{Db, Tx},
    error::{Code, Error, Result},
    events::EventKind,
    features::inbox::{self, Reader, Told},
    ids::{EventId, Principal, SessionId, UserId},
    limits::quotas::{MAX_SESSION_DAYS, REFRESH_GRACE, REFRESH_TOKEN_TTL},
    vocabulary::RevocationReason,
};

/// A session to be.
pub struct NewSession {
    pub id: SessionId,
    pub device_id: String,
    /// Whether we chose the device's id.
    pub provisional: bool,
    pub device_name: Option<String>,
    pub platform: Option<String>,
}

/// What a sign-in found.
pub struct SignedIn {
    /// It was not known, or had been revoked.
    pub is_new_device: bool,
    /// Sessions that the device had before; they are over.
    pub replaced: Vec<SessionId>,
}

/// Makes a session of a user's device; the one it had before ends. Refused for an account that is gone.
pub async fn sign_in(tx: &Tx, user: UserId, new: &NewSession) -> Result<SignedIn> {
    let stmt = tx
        .prepare_cached(
            "-- devices.may_sign_in
            select 1 from user_account where user_id = $1 and deleted_at is null for share",
        )
        .await?;
    tx.query_opt(&stmt, &[&user])
        .await?
        .ok_or(Code::InvalidCredentials)?;
    let stmt = tx
        .prepare_cached(
            "-- devices.see
            with before as (select revoked_at from device where user_id = $1 and device_id = $2)
            insert into device (user_id, device_id, display_name, platform, provisional) values ($1, $2, $3, $4, $5)
            on conflict (user_id, device_id) do update set
                display_name = coalesce(excluded.display_name, device.display_name),
                platform = coalesce(excluded.platform, device.platform), last_seen_at = app_now(), revoked_at = null
            returning xmax = 0 or coalesce((select revoked_at is not null from before), false) as is_new",
        )
        .await?;
    let row = tx
        .query_one(
            &stmt,
            &[
                &user,
                &new.device_id,
                &new.device_name,
                &new.platform,
                &new.provisional,
            ],
        )
        .await?;
    let is_new_device = row.get("is_new");
    let replaced = end_device(tx, user, &new.device_id, RevocationReason::Logout).await?;
    let stmt = tx
        .prepare_cached(
            "-- devices.create_session
            insert into session (session_id, user_id, device_id, refresh_expires_at, absolute_expires_at)
            values ($1, $2, $3, app_now() + make_interval(secs => $4), app_now() + make_interval(days => $5))",
        )
        .await?;
    tx.execute(
        &stmt,
        &[
            &new.id,
            &user,
            &new.device_id,
            &REFRESH_TOKEN_TTL.as_secs_f64(),
            &MAX_SESSION_DAYS,
        ],
    )
    .await?;
    inbox::create_reader(tx, &Reader::new(Principal::User(user), &new.device_id)).await?;
    Ok(SignedIn {
        is_new_device,
        replaced,
    })
}

/// Ends the sessions of one device.
pub async fn end_device(
    tx: &Tx,
    user: UserId,
    device: &str,
    reason: RevocationReason,
) -> Result<Vec<SessionId>> {
    let stmt = tx
        .prepare_cached(
            "-- devices.end_device
            update session set revoked_at = app_now(), revoke_reason = $3
            where user_id = $1 and device_id = $2 and revoked_at is null
            returning session_id",
        )
        .await?;
    Ok(tx
        .query(&stmt, &[&user, &device, &reason])
        .await?
        .iter()
        .map(|row| row.get("session_id"))
        .collect())
}

/// Ends all sessions of a user but one.
pub async fn end_all(
    tx: &Tx,
    user: UserId,
    except: Option<SessionId>,
    reason: RevocationReason,
) -> Result<Vec<SessionId>> {
    let stmt = tx
        .prepare_cached(
            "-- devices.end_all
            update session set revoked_at = app_now(), revoke_reason = $3
            where user_id = $1 and session_id is distinct from $2 and revoked_at is null
            returning session_id",
        )
        .await?;
    Ok(tx
        .query(&stmt, &[&user, &except, &reason])
        .await?
        .iter()
        .map(|row| row.get("session_id"))
        .collect())
}

/// Ends one session; false if it was over already.
pub async fn end_session(tx: &Tx, session: SessionId, reason: RevocationReason) -> Result<bool> {
    let stmt = tx
        .prepare_cached(
            "-- devices.end_session
            update session set revoked_at = app_now(), revoke_reason = $2
            where session_id = $1 and revoked_at is null",
        )
        .await?;
    Ok(tx.execute(&stmt, &[&session, &reason]).await? > 0)
}

/// What a refresh token was worth.
pub enum Refreshed {
    /// The session goes on with this generation.
    Next {
        user: UserId,
        device_id: String,
        generation: i32,
    },
    /// An old token came back after its grace: the session is over.
    Stolen,
    /// There is no such session any more.
    RevokedCredentials,
}

/// Rotates: the current generation gives the next one; its predecessor gives the current one for ten seconds; what is
/// older was stolen. One statement, so that many tabs at once wait for each other no longer than it takes.
pub async fn refresh(db: &Db, session: SessionId, generation: i32) -> Result<Refreshed> {
    let client = db.read().await?;
    let stmt = client
        .prepare_cached(
            "-- devices.refresh
            update session set
                generation = case when generation = $2 then generation + 1 else generation end,
                rotated_at = case when generation = $2 then app_now() else rotated_at end,
                refresh_expires_at = case when generation = $2
                    then least(app_now() + make_interval(secs => $4), absolute_expires_at) else refresh_expires_at end,
                revoked_at = case when generation <> $2 and not (generation = $2 + 1 and rotated_at > app_now() - make_interval(secs => $3)) then app_now() end,
                revoke_reason = case when generation <> $2 and not (generation = $2 + 1 and rotated_at > app_now() - make_interval(secs => $3)) then 'refresh_reuse' end
            where session_id = $1 and revoked_at is null and refresh_expires_at > app_now() and absolute_expires_at > app_now()
            returning user_id, device_id, generation, revoked_at is not null as is_stolen",
        )
        .await?;
    let (grace, life) = (REFRESH_GRACE.as_secs_f64(), REFRESH_TOKEN_TTL.as_secs_f64());
    let Some(row) = client
        .query_opt(&stmt, &[&session, &generation, &grace, &life])
        .await?
    else {
        return Ok(Refreshed::RevokedCredentials);
    };
    if row.get("is_stolen") {
        return Ok(Refreshed::Stolen);
    }
    Ok(Refreshed::Next {
        user: row.get("user_id"),
        device_id: row.get("device_id"),
        generation: row.get("generation"),
    })
}

/// At most `most` devices, newest first, after `cursor`; a cursor that is none of the user's is refused. A device that we
/// named is left out once it is signed out: nobody could tell it from another.
///
/// `online` are the devices that have a socket, by the names they had when it was opened.
pub async fn list(
    db: &Db,
    user: &User,
    online: &HashSet<String>,
    cursor: Option<&str>,
    most: i64,
) -> Result<Vec<Device>> {
    let client = db.read().await?;
    if let Some(cursor) = cursor {
        let stmt = client
            .prepare_cached(
                "-- devices.find_cursor
                select 1 from device where user_id = $1 and device_id = $2",
            )
            .await?;
        if client
            .query_opt(&stmt, &[&user.id, &cursor])
            .await?
            .is_none()
        {
            return Err(Error::field("cursor", "unknown", "is no id of this list"));
        }
    }
    let stmt = client
        .prepare_cached(
            "-- devices.list
            select d.device_id, d.display_name, d.platform, d.created_at,
                   greatest(d.last_seen_at, s.rotated_at) as last_seen_at, d.device_id = $2 as is_current,
                   d.key_id is not null as has_keys, d.renamed_from, app_now() as now
            from device d
            left join live_session s on s.user_id = d.user_id and s.device_id = d.device_id
                and s.refresh_expires_at > app_now()
            left join device seen on seen.user_id = d.user_id and seen.device_id = $3
            where d.user_id = $1 and d.revoked_at is null
              and (not d.provisional or d.key_id is not null or s.session_id is not null)
              and ($3::text is null or (d.created_at, d.device_id) < (seen.created_at, seen.device_id))
            order by d.created_at desc, d.device_id desc
            limit $4",
        )
        .await?;
    let rows = client
        .query(&stmt, &[&user.id, &user.device_id, &cursor, &most])
        .await?;
    let devices = rows.iter().map(|row| {
        let device_id: String = row.get("device_id");
        let before: Option<String> = row.get("renamed_from");
        let online =
            online.contains(&device_id) || before.is_some_and(|before| online.contains(&before));
        Device {
            device_id,
            display_name: row.get("display_name"),
            platform: row.get("platform"),
            created_at: row.get("created_at"),
            last_seen_at: row.get(if online { "now" } else { "last_seen_at" }),
            current: row.get("is_current"),
            has_keys: row.get("has_keys"),
            online,
        }
    });
    Ok(devices.collect())
}

/// What a revocation ended.
pub struct Revoked {
    pub at: DateTime<Utc>,
    pub sessions: Vec<SessionId>,
    /// To be told after commit.
    pub told: Option<Told>,
}

/// Revokes a device of the user's whose session still counts.
pub async fn revoke(tx: &Tx, event: EventId, user: &User, device: &str) -> Result<Revoked> {
    let stmt = tx
        .prepare_cached(
            "-- devices.lock_user
            select 1 from user_account where user_id = $1 for update",
        )
        .await?;
    tx.execute(&stmt, &[&user.id]).await?;
    lock_live_session(tx, user.id, user.session).await?;
    let stmt = tx
        .prepare_cached(
            "-- devices.revoke
            with before as (select key_id from device where user_id = $1 and device_id = $2)
            update device set revoked_at = app_now(), key_id = null, key_version = null, key_since = null
            where user_id = $1 and device_id = $2 and revoked_at is null
            returning revoked_at, (select key_id from before)",
        )
        .await?;
    let row = tx
        .query_opt(&stmt, &[&user.id, &device])
        .await?
        .ok_or(Code::NotFound)?;
    let sessions = end_device(tx, user.id, device, RevocationReason::DeviceRevoked).await?;
    let told = match row.get::<_, Option<String>>("key_id") {
        Some(key) => {
            lost::note(tx, user.id, device).await?;
            Some(tell_removed(tx, event, user.id, device, &key).await?)
        }
        None => None,
    };
    inbox::forget_reader(tx, &Reader::new(Principal::User(user.id), device)).await?;
    Ok(Revoked {
        at: row.get("revoked_at"),
        sessions,
        told,
    })
}

async fn tell_removed(
    tx: &Tx,
    event: EventId,
    user: UserId,
    device: &str,
    key: &str,
) -> Result<Told> {
    let stmt = tx
        .prepare_cached(
            "-- devices.bump_list
            update user_account set key_list_version = key_list_version + 1 where user_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&user]).await?;
    let data = json!({ "user_id": user, "device_id": device, "key_id": key }).to_string();
    let audience = audience(tx, user).await?;
    inbox::append(
        tx,
        event,
        EventKind::KeyDeviceRemoved,
        None,
        &data,
        &audience,
    )
    .await
}

/// Who hears of a user's devices: the user, and everyone who shares a conversation.
pub async fn audience(tx: &Tx, user: UserId) -> Result<Vec<Uuid>> {
    let stmt = tx
        .prepare_cached(
            "-- devices.audience
            select $1::uuid as principal_id
            union
            select m.principal_id
            from member mine join active_member m using (conversation_id)
            where mine.principal_id = $1",
        )
        .await?;
    Ok(tx
        .query(&stmt, &[&user])
        .await?
        .iter()
        .map(|row| row.get("principal_id"))
        .collect())
}
