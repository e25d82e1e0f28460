//! What happens to sessions and devices besides sign-ins and their ends.

use blindpipe_protocol::{revocation::RevocationReason, time::Timestamp};

use crate::{
    db::Conn,
    error::{Code, Result},
    features::devices::bump_list,
    ids::{CredentialId, SessionId, UserId},
    work::Tx,
};

/// Statements that delete by age, a batch of `$1` rows each: sessions that ended 30 days ago, and devices that
/// never got a name. Locked rows are skipped.
pub const FORGET: [&str; 2] = [
    "-- devices.forget_sessions
    delete from session where session_id = any(array(
        select session_id from session
        where least(revoked_at, refresh_expires_at, absolute_expires_at) < app_now() - interval '30 days'
        limit $1 for update skip locked))",
    "-- devices.forget
    delete from device where provisional and created_at = any(array(
        select created_at from device d
        where provisional and created_at < app_now() - interval '30 days'
            and not exists (select from session s where s.user_id = d.user_id and s.device_id = d.device_id)
        limit $1 for update skip locked))
        and not exists (select from session s where s.user_id = device.user_id and s.device_id = device.device_id)",
];

/// Notes that the session's user was verified just now. Refused if the session is over.
pub async fn note_proof(tx: &Tx, session: SessionId) -> Result<()> {
    let noted = tx
        .execute(
            "-- devices.note_proof
            update session set authenticated_at = app_now() where session_id = $1 and revoked_at is null",
            &[&session],
        )
        .await?;
    match noted {
        0 => Err(Code::Unauthorized.into()),
        _ => Ok(()),
    }
}

/// Revokes those sessions that live; returns their number. Locks them in order.
pub async fn mark_revoked(
    tx: &Conn,
    credentials: &[CredentialId],
    reasons: &[RevocationReason],
) -> Result<u64> {
    tx.execute(
        "-- devices.mark_revoked
        with live as materialized (
            select session_id, reason from session
            join unnest($1::uuid[], $2::text[]) as gone (id, reason) on id = session_id
            where revoked_at is null order by session_id for update of session
        )
        update session s set revoked_at = app_now(), revoke_reason = reason
        from live where s.session_id = live.session_id",
        &[&credentials, &reasons],
    )
    .await
}

/// Takes the names from the devices of a deleted user, and ends them.
pub async fn strip_all(tx: &Tx, user: UserId) -> Result<()> {
    tx.execute(
        "-- devices.strip_all
        update device set display_name = null, platform = null, revoked_at = coalesce(revoked_at, app_now())
        where user_id = $1",
        &[&user],
    )
    .await?;
    Ok(())
}

/// A version of a device's keys, as the directory names it.
pub struct ListedKey<'a> {
    pub device_id: &'a str,
    pub key_id: &'a str,
    pub version: i32,
    pub created_at: Timestamp,
}

/// Makes these keys the directory's entry of the device.
pub async fn list_key(tx: &Tx, user: UserId, key: &ListedKey<'_>) -> Result<()> {
    bump_list(tx, user).await?;
    tx.execute(
        "-- devices.list_key
        update device set key_id = $3, key_version = $4, key_since = $5 where user_id = $1 and device_id = $2",
        &[&user, &key.device_id, &key.key_id, &key.version, &key.created_at],
    )
    .await?;
    Ok(())
}

/// Points the directory's entry to a newer version with the same keys.
pub async fn repoint_key(tx: &Tx, user: UserId, device_id: &str, version: i32) -> Result<()> {
    tx.execute(
        "-- devices.repoint_key
        update device set key_version = $3 where user_id = $1 and device_id = $2",
        &[&user, &device_id, &version],
    )
    .await?;
    Ok(())
}
