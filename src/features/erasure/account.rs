//! The end of an account: everything that the answered transaction must revoke. It takes no lock
//! that a send waits for. A job publishes the events to others ([`Job::EraseAccount`]).

use axum::extract::State;
use blindpipe_protocol::{accounts::AccountDeleted, revocation::RevocationReason};
use chrono::{DateTime, Utc};

use crate::{
    auth::user::{User, lock_live_session},
    error::Result,
    features::{accounts, agents, blocks, devices, passkeys},
    http::Data,
    ids::UserId,
    jobs::Job,
    work::{Tx, UnitOfWork},
};

/// `DELETE /users/me`: ends the account with its sessions, agents, keys and backups. Within seconds
/// its relations end and it leaves its conversations. Its messages stay with their recipients.
///
/// Caller: user with a login less than 10 min old. Answers 200 with [`AccountDeleted`]. All sockets
/// of the user and its agents get `session.invalidated`, `account_deleted`. Errors:
/// `REAUTH_REQUIRED`. Publishes, within seconds, `key.device_removed`, `relation.revoked` and
/// `member.removed`.
pub async fn delete(user: User, State(work): State<UnitOfWork>) -> Result<Data<AccountDeleted>> {
    user.must_be_recent()?;
    let deleted_at = work
        .run("erasure.end_account", async |tx| end(tx, &user).await)
        .await?;
    Ok(Data(AccountDeleted {
        user_id: user.id,
        deleted_at: deleted_at.into(),
    }))
}

/// Ends the account: nobody can sign in, no session, token or key of it counts. Its address is
/// free. Its key backups are erased after a grace of 7 days, by `blindpipe erase`.
async fn end(tx: &Tx, user: &User) -> Result<DateTime<Utc>> {
    accounts::lock(tx, user.id).await?;
    lock_live_session(tx, user.id, user.session).await?;
    let at = end_locked(tx, user.id).await?;
    tx.enqueue(Job::EraseAccount { user: user.id });
    Ok(at)
}

/// Ends an account that is locked. The caller erases it after the commit.
pub async fn end_locked(tx: &Tx, user: UserId) -> Result<DateTime<Utc>> {
    agents::end_all(tx, user).await?;
    let at = accounts::end(tx, user).await?;
    passkeys::end_all(tx, user).await?;
    blocks::end_all(tx, user).await?;
    devices::strip_all(tx, user).await?;
    devices::end_all(tx, user, None, RevocationReason::AccountDeleted).await?;
    Ok(at)
}
