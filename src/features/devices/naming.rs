//! How a device that came without a name gets one: by its first key backup.
//!
//! All locks are taken in one order: the user's row (by the caller), devices, sessions.

use crate::{
    auth::user::User,
    error::{Code, Error, Result},
    ids::{Principal, UserId},
    inbox::{self, Reader},
    work::Tx,
};

/// Makes sure that the session's device is called `wanted`: a device that we named is renamed, one that has a name of
/// its own must have this. The caller has locked the user's row. Sessions that the device had under this name end. True
/// if the session's user has proven who they are in the last `fresh_seconds`.
pub async fn name(tx: &Tx, user: &User, wanted: &str, fresh_seconds: f64) -> Result<bool> {
    let row = tx
        .query_opt(
            "-- devices.of_session
            select d.device_id, d.provisional, s.authenticated_at > app_now() - make_interval(secs => $3)
            from session s join device d using (user_id, device_id)
            where s.session_id = $1 and s.user_id = $2 and s.revoked_at is null
            for update of d",
            &[&user.session, &user.id, &fresh_seconds],
        )
        .await?;
    let row = row.ok_or(Code::Unauthorized)?;
    let (current, provisional, fresh): (String, bool, bool) = (row.get(0), row.get(1), row.get(2));
    if !provisional && current != wanted {
        return Err(Error::from(Code::DeviceMismatch).with("device_id", current));
    }
    if provisional {
        if current == wanted || !exists(tx, user.id, wanted).await? {
            rename(tx, user.id, &current, wanted).await?;
        } else {
            super::store::end_device(tx, user.id, wanted, "logout").await?;
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

/// The device's sessions follow by their foreign key.
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

/// A known device signed in without saying who it is: its session goes over, and the name we gave it is dropped.
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
