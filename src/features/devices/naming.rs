//! The first key backup names a device that has a provisional id.
//!
//! All locks are taken in one order: the user's row (by the caller), devices, sessions.

use blindpipe_protocol::revocation::RevocationReason;

use crate::{
    auth::user::User,
    error::{Code, Error, Result},
    ids::{Principal, UserId},
    inbox::{self, Reader},
    work::Tx,
};

/// Gives the session's device the id `wanted`. A provisional device is renamed; a named device must
/// have this id already. The caller has locked the user's row. Earlier sessions of the device with
/// this id end. True if the session's user was verified in the last `fresh_seconds`.
pub async fn name(tx: &Tx, user: &User, wanted: &str, fresh_seconds: f64) -> Result<bool> {
    let row = tx
        .query_opt(
            "-- devices.of_session
            select d.device_id, d.provisional, s.authenticated_at > app_now() - make_interval(secs => $3) as is_fresh
            from live_session s join device d using (user_id, device_id)
            where s.session_id = $1 and s.user_id = $2
            for update of d",
            &[&user.session, &user.id, &fresh_seconds],
        )
        .await?;
    let row = row.ok_or(Code::Unauthorized)?;
    let (current, provisional, fresh): (String, bool, bool) = (
        row.get("device_id"),
        row.get("provisional"),
        row.get("is_fresh"),
    );
    if !provisional && current != wanted {
        return Err(Error::from(Code::DeviceMismatch).with("device_id", current));
    }
    if provisional {
        if current == wanted || !exists(tx, user.id, wanted).await? {
            rename(tx, user.id, &current, wanted).await?;
        } else {
            super::store::end_device(tx, user.id, wanted, RevocationReason::Logout).await?;
            merge(tx, user.id, &current, wanted).await?;
        }
        let principal = Principal::User(user.id);
        inbox::rename_reader(tx, &Reader::new(principal, &current), wanted).await?;
    }
    Ok(fresh)
}

async fn exists(tx: &Tx, user: UserId, device: &str) -> Result<bool> {
    Ok(tx
        .query_opt(
            "-- devices.find
            select 1 from device where user_id = $1 and device_id = $2 for update",
            &[&user, &device],
        )
        .await?
        .is_some())
}

/// The foreign key carries the device's sessions along.
async fn rename(tx: &Tx, user: UserId, from: &str, to: &str) -> Result<()> {
    tx.execute(
        "-- devices.rename
        update device set device_id = $3, provisional = false, renamed_from = nullif($2, $3)
        where user_id = $1 and device_id = $2",
        &[&user, &from, &to],
    )
    .await?;
    Ok(())
}

/// Merges a provisional device into a known one: the session moves, and the provisional id is
/// dropped.
async fn merge(tx: &Tx, user: UserId, from: &str, to: &str) -> Result<()> {
    tx.execute(
        "-- devices.take_over
        update device d set renamed_from = $2, last_seen_at = app_now(), revoked_at = null,
            display_name = coalesce(old.display_name, d.display_name), platform = coalesce(old.platform, d.platform)
        from device old
        where d.user_id = $1 and d.device_id = $3 and old.user_id = $1 and old.device_id = $2",
        &[&user, &from, &to],
    )
    .await?;
    tx.execute(
        "-- devices.move_sessions
        update session set device_id = $3 where user_id = $1 and device_id = $2",
        &[&user, &from, &to],
    )
    .await?;
    tx.execute(
        "-- devices.drop
        delete from device where user_id = $1 and device_id = $2",
        &[&user, &from],
    )
    .await?;
    Ok(())
}
