use std::{collections::HashSet, time::Duration};

use blindpipe_protocol::{
    devices::{DeviceKeyChange, RevokedDevice, StillThere},
    revocation::RevocationReason,
};
use chrono::{DateTime, Utc};

use super::http::Device;
use crate::{
    auth::user::{User, lock_live_session},
    db::Db,
    error::{Code, Error, Result},
    events::Event,
    features::announcements::{self, Audience},
    ids::{PasskeyId, Principal, SessionId, UserId},
    inbox::{self, Reader},
    jobs::{ConsentEnd, Job},
    limits::quotas::{MAX_SESSION_DAYS, REFRESH_GRACE, REFRESH_TOKEN_TTL},
    work::Tx,
};

/// The longest duration of a transaction, however slow its statements are.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// A session that is to be created.
pub struct NewSession {
    pub id: SessionId,
    pub device_id: String,
    /// Whether the server chose the device's id.
    pub provisional: bool,
    pub device_name: Option<String>,
    pub platform: Option<String>,
    /// The session of the refresh cookie that the login brings.
    pub cookie: Option<SessionId>,
    /// The passkey that the login uses.
    pub passkey: Option<PasskeyId>,
}

/// Makes a session of a user's device and ends its earlier one. True if the device was unknown or
/// revoked. Refused for an account that is gone.
pub async fn sign_in(tx: &Tx, user: UserId, new: &NewSession) -> Result<bool> {
    tx.query_opt(
        "-- devices.may_sign_in
        select 1 from user_account where user_id = $1 and deleted_at is null for share",
        &[&user],
    )
    .await?
    .ok_or(Code::InvalidCredentials)?;
    let row = tx
        .query_one(
            "-- devices.see
            with before as (select revoked_at from device where user_id = $1 and device_id = $2)
            insert into device (user_id, device_id, display_name, platform, provisional) values ($1, $2, $3, $4, $5)
            on conflict (user_id, device_id) do update set
                display_name = coalesce(excluded.display_name, device.display_name),
                platform = coalesce(excluded.platform, device.platform), last_seen_at = app_now(), revoked_at = null
            returning device.created_at = app_now() or coalesce((select revoked_at is not null from before), false) as is_new",
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
    end_device(tx, user, &new.device_id, RevocationReason::Logout).await?;
    tx.execute(
        "-- devices.create_session
        insert into session (session_id, user_id, device_id, refresh_expires_at, absolute_expires_at)
        values ($1, $2, $3, app_now() + make_interval(secs => $4), app_now() + make_interval(days => $5))",
        &[
            &new.id,
            &user,
            &new.device_id,
            &REFRESH_TOKEN_TTL.as_secs_f64(),
            &MAX_SESSION_DAYS,
        ],
    )
    .await?;
    if let Some(passkey) = new.passkey {
        tx.execute(
            "-- devices.note_passkey
            insert into passkey_device (passkey_id, user_id, device_id) values ($1, $2, $3) on conflict do nothing",
            &[&passkey, &user, &new.device_id],
        )
        .await?;
    }
    inbox::create_reader(tx, &Reader::new(Principal::User(user), &new.device_id)).await?;
    Ok(is_new_device)
}

/// Ends the sessions of one device.
pub async fn end_device(
    tx: &Tx,
    user: UserId,
    device: &str,
    reason: RevocationReason,
) -> Result<()> {
    let ended = tx
        .query(
            "-- devices.end_device
            update session set revoked_at = app_now(), revoke_reason = $3
            where user_id = $1 and device_id = $2 and revoked_at is null
            returning session_id",
            &[&user, &device, &reason],
        )
        .await?;
    tx.revoke(
        ended.iter().map(|row| row.get("session_id")).collect(),
        reason,
    );
    Ok(())
}

/// Ends all sessions of a user except one.
pub async fn end_all(
    tx: &Tx,
    user: UserId,
    except: Option<SessionId>,
    reason: RevocationReason,
) -> Result<()> {
    let ended = tx
        .query(
            "-- devices.end_all
            update session set revoked_at = app_now(), revoke_reason = $3
            where user_id = $1 and session_id is distinct from $2 and revoked_at is null
            returning session_id",
            &[&user, &except, &reason],
        )
        .await?;
    tx.revoke(
        ended.iter().map(|row| row.get("session_id")).collect(),
        reason,
    );
    Ok(())
}

/// Ends one session. Does nothing if it was over already.
pub async fn end_session(tx: &Tx, session: SessionId, reason: RevocationReason) -> Result<()> {
    let ended = tx
        .query(
            "-- devices.end_session
            update session set revoked_at = app_now(), revoke_reason = $2
            where session_id = $1 and revoked_at is null
            returning session_id",
            &[&session, &reason],
        )
        .await?;
    tx.revoke(
        ended.iter().map(|row| row.get("session_id")).collect(),
        reason,
    );
    Ok(())
}

/// A session that goes on.
pub struct RefreshedSession {
    pub user: UserId,
    pub device_id: String,
    /// The generation of its next refresh token.
    pub generation: i32,
    /// Whether the token was of a later generation than the session: a failover or a restore has
    /// lost its last rotations.
    pub was_ahead: bool,
}

/// Rotates a refresh token: the current generation gives the next one. Its predecessor gives the
/// current one for `grace`. None for any earlier one.
///
/// A later generation is genuine, because only a node makes tokens: the database went back, and the
/// session goes on behind it. It is a single statement, so that many tabs wait only as long as it
/// takes.
pub async fn refresh(
    db: &Db,
    session: SessionId,
    generation: i32,
    grace: Duration,
) -> Result<Option<RefreshedSession>> {
    let client = db.write().await?;
    let life = REFRESH_TOKEN_TTL.as_secs_f64();
    let row = client
        .query_opt(
            "-- devices.refresh
            update session s set
                generation = case when s.generation <= $2 then $2 + 1 else s.generation end,
                rotated_at = case when s.generation <= $2 then app_now() else s.rotated_at end,
                refresh_expires_at = case when s.generation <= $2
                    then least(app_now() + make_interval(secs => $4), s.absolute_expires_at) else s.refresh_expires_at end
            from session before
            where s.session_id = $1 and before.session_id = $1
                and s.revoked_at is null and s.refresh_expires_at > app_now() and s.absolute_expires_at > app_now()
                and (s.generation <= $2 or s.generation = $2 + 1 and s.rotated_at > app_now() - make_interval(secs => $3))
            returning s.user_id, s.device_id, s.generation, before.generation < $2 as was_ahead",
            &[&session, &generation, &grace.as_secs_f64(), &life],
        )
        .await?;
    Ok(row.map(|row| RefreshedSession {
        user: row.get("user_id"),
        device_id: row.get("device_id"),
        generation: row.get("generation"),
        was_ahead: row.get("was_ahead"),
    }))
}

/// Ends a session whose token came back after its grace, because it was stolen. False if the
/// session was over already, or the token is a later one.
pub async fn end_reused(tx: &Tx, session: SessionId, generation: i32) -> Result<bool> {
    let ended = tx
        .execute(
            "-- devices.end_stolen
            update session set revoked_at = app_now(), revoke_reason = 'refresh_reuse'
            where session_id = $1 and revoked_at is null and refresh_expires_at > app_now() and absolute_expires_at > app_now()
                and generation > $2
                and not (generation = $2 + 1 and rotated_at > app_now() - make_interval(secs => $3))",
            &[&session, &generation, &REFRESH_GRACE.as_secs_f64()],
        )
        .await?
        > 0;
    if ended {
        tx.revoke(vec![session.into()], RevocationReason::RefreshReuse);
    }
    Ok(ended)
}

/// Returns `true` if the login carries proof of a known device: its refresh cookie (also an ended
/// one) or a passkey used there. The id of a device proves nothing, because contacts can read it.
pub async fn is_known(tx: &Tx, user: UserId, new: &NewSession) -> Result<bool> {
    if new.cookie.is_none() && new.passkey.is_none() {
        return Ok(false);
    }
    Ok(tx
        .query_one(
            "-- devices.is_known
            select exists (select from session where session_id = $3 and user_id = $1 and device_id = $2)
                or exists (select from passkey_device where passkey_id = $4 and user_id = $1 and device_id = $2) as is_known",
            &[&user, &new.device_id, &new.cookie, &new.passkey],
        )
        .await?
        .get("is_known"))
}

/// Counts what a user has that signs in or acts without a session. A thief may have made some of
/// it.
pub async fn still_there(tx: &Tx, user: UserId) -> Result<StillThere> {
    let row = tx
        .query_one(
            "-- devices.still_there
            select (select count(*) from passkey where user_id = $1) as passkeys,
                   (select count(*) from agent where owner_user_id = $1 and state <> 'deleted') as agents",
            &[&user],
        )
        .await?;
    Ok(StillThere {
        passkeys: row.get("passkeys"),
        agents: row.get("agents"),
    })
}

/// At most `most` devices, newest first, after `cursor`. Refuses a cursor that is not the user's.
/// Omits a signed-out device with a provisional id, because nobody could recognise it.
///
/// `online` are the devices that have a socket, by their ids when it was opened.
pub async fn list(
    db: &Db,
    user: &User,
    online: &HashSet<String>,
    cursor: Option<&str>,
    limit: i64,
) -> Result<Vec<Device>> {
    let client = db.read().await?;
    if let Some(cursor) = cursor {
        client
            .query_opt(
                "-- devices.find_cursor
                select 1 from device where user_id = $1 and device_id = $2",
                &[&user.id, &cursor],
            )
            .await?
            .ok_or_else(|| Error::field("cursor", "unknown", "is no id of this list"))?;
    }
    let rows = client
        .query(
            "-- devices.list
            select d.device_id, d.display_name, d.platform, d.created_at,
                   greatest(d.last_seen_at, s.rotated_at) as last_seen_at, d.device_id = $2 as is_current,
                   d.key_id is not null as has_keys, d.renamed_from, app_now() as now,
                   (select max(session_id::text)::uuid from session n
                    where n.user_id = d.user_id and n.device_id = d.device_id) as newest_session
            from device d
            left join live_session s on s.user_id = d.user_id and s.device_id = d.device_id
                and s.refresh_expires_at > app_now()
            left join device seen on seen.user_id = d.user_id and seen.device_id = $3
            where d.user_id = $1 and d.revoked_at is null
              and (not d.provisional or d.key_id is not null or s.session_id is not null)
              and ($3::text is null or (d.created_at, d.device_id) < (seen.created_at, seen.device_id))
            order by d.created_at desc, d.device_id desc
            limit $4",
            &[&user.id, &user.device_id, &cursor, &limit],
        )
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
            session_id: row.get("newest_session"),
        }
    });
    Ok(devices.collect())
}

/// Revokes a device of the user's whose session still counts.
pub async fn revoke(tx: &Tx, user: &User, device: &str) -> Result<RevokedDevice> {
    tx.execute(
        "-- devices.lock_user
        select 1 from user_account where user_id = $1 for update",
        &[&user.id],
    )
    .await?;
    lock_live_session(tx, user.id, user.session).await?;
    let row = tx
        .query_opt(
            "-- devices.revoke
            with before as (select key_id from device where user_id = $1 and device_id = $2)
            update device set revoked_at = app_now(), key_id = null, key_version = null, key_since = null
            where user_id = $1 and device_id = $2 and revoked_at is null
            returning revoked_at, (select key_id from before),
                (select max(session_id::text)::uuid from session where user_id = $1 and device_id = $2) as newest_session",
            &[&user.id, &device],
        )
        .await?
        .ok_or(Code::NotFound)?;
    end_device(tx, user.id, device, RevocationReason::DeviceRevoked).await?;
    if let Some(key) = row.get::<_, Option<String>>("key_id") {
        replace_keys(tx, user.id, device);
        bump_list(tx, user.id).await?;
        announce_removed(tx, user.id, device.to_owned(), key).await?;
    }
    inbox::forget_reader(tx, &Reader::new(Principal::User(user.id), device)).await?;
    tx.enqueue(Job::EndConsent(ConsentEnd::Device(
        user.id,
        device.to_owned(),
    )));
    let StillThere { passkeys, agents } = still_there(tx, user.id).await?;
    Ok(RevokedDevice {
        device_id: device.to_owned(),
        revoked_at: row.get::<_, DateTime<Utc>>("revoked_at").into(),
        session_id: row.get("newest_session"),
        passkeys,
        agents,
    })
}

/// Puts the job that requires other keys in conversations whose current key the device holds. It
/// runs twice. The second run finds keys from transactions that were open during the first.
fn replace_keys(tx: &Tx, user: UserId, device: &str) {
    for delay in [Duration::ZERO, TRANSACTION_TIMEOUT] {
        let job = Job::ReplaceKeys {
            user,
            device_id: device.to_owned(),
        };
        tx.enqueue_in(job, delay);
    }
}

/// Notes a change in the directory of the user's keys.
pub async fn bump_list(tx: &Tx, user: UserId) -> Result<()> {
    tx.execute(
        "-- devices.bump_list
        update user_account set key_list_version = key_list_version + 1 where user_id = $1",
        &[&user],
    )
    .await?;
    Ok(())
}

/// Announces the removal of a key to everybody who could see it.
async fn announce_removed(tx: &Tx, user: UserId, device: String, key: String) -> Result<()> {
    let event = Event::KeyDeviceRemoved(DeviceKeyChange {
        user_id: user,
        device_id: device,
        key_id: key,
    });
    announcements::broadcast(tx, &Audience::of_user(user), &[event]).await
}

/// Removes one key of a deleted user from the directory and announces it. False if none is left.
/// The caller has locked nothing: the job that erases a user is the only one that still changes it.
pub async fn remove_key(tx: &Tx, user: UserId) -> Result<bool> {
    let removed = tx
        .query_opt(
            "-- devices.remove_key
            with next as (select device_id, key_id from device where user_id = $1 and key_id is not null limit 1)
            update device d set key_id = null, key_version = null, key_since = null from next
            where d.user_id = $1 and d.device_id = next.device_id
            returning next.device_id, next.key_id",
            &[&user],
        )
        .await?;
    let Some(row) = removed else { return Ok(false) };
    announce_removed(tx, user, row.get("device_id"), row.get("key_id")).await?;
    Ok(true)
}
