//! The end of an account: everything that the answered transaction must revoke. It takes no lock
//! that a send waits for. A job publishes the events to others ([`Job::EraseAccount`]).

use blindpipe_protocol::revocation::RevocationReason;
use chrono::{DateTime, Utc};

use super::suspend_webhooks;
use crate::{
    auth::user::{User, lock_live_session},
    error::Result,
    features::devices,
    ids::{AgentId, UserId},
    jobs::Job,
    work::Tx,
};

/// Ends the account: nobody can sign in, no session, token or key of it counts. Its address is
/// free. Its key backups are erased after a grace of 7 days, by `blindpipe erase`.
pub async fn delete(tx: &Tx, user: &User) -> Result<DateTime<Utc>> {
    tx.execute(
        "-- accounts.lock
        select 1 from user_account where user_id = $1 for update",
        &[&user.id],
    )
    .await?;
    lock_live_session(tx, user.id, user.session).await?;
    end_agents(tx, user.id).await?;
    let at = tx
        .query_one(
            "-- accounts.delete
            update user_account set deleted_at = app_now(), email = 'deleted:' || user_id, display_name = 'Deleted account',
                device_locale = '', password_hash = '', key_list_version = key_list_version + 1
            where user_id = $1
            returning deleted_at",
            &[&user.id],
        )
        .await?
        .get("deleted_at");
    tx.execute(
        "-- accounts.strip_devices
        with passkeys as (delete from passkey where user_id = $1), blocks as (delete from block where user_id = $1),
             challenges as (delete from passkey_challenge where user_id = $1),
             changes as (delete from email_change where user_id = $1)
        update device set display_name = null, platform = null, revoked_at = coalesce(revoked_at, app_now())
        where user_id = $1",
        &[&user.id],
    )
    .await?;
    devices::end_all(tx, user.id, None, RevocationReason::AccountDeleted).await?;
    tx.enqueue(Job::EraseAccount { user: user.id });
    Ok(at)
}

/// Locks agents' rows after their owner's and before all others.
async fn end_agents(tx: &Tx, owner: UserId) -> Result<()> {
    let ended = tx
        .query(
            "-- accounts.end_agents
        with mine as materialized (
            select agent_id from agent where owner_user_id = $1 and state <> 'deleted' order by agent_id for no key update
        ), keys as (
            delete from agent_key k using mine where k.agent_id = mine.agent_id
        )
        update agent a set state = 'deleted', deleted_at = app_now(), unreachable_since = null
        from mine where a.agent_id = mine.agent_id
        returning a.agent_id",
            &[&owner],
        )
        .await?;
    let ended: Vec<AgentId> = ended.iter().map(|row| row.get("agent_id")).collect();
    let tokens = tx
        .query(
            "-- accounts.end_tokens
            update agent_token t set revoked_at = app_now(), bcrypt_hash = null, revoke_reason = 'account_deleted'
            from agent a
            where a.agent_id = t.agent_id and a.owner_user_id = $1 and t.revoked_at is null
            returning t.token_id",
            &[&owner],
        )
        .await?;
    let tokens = tokens.iter().map(|row| row.get("token_id")).collect();
    tx.revoke(tokens, RevocationReason::AccountDeleted);
    suspend_webhooks(tx, &ended, RevocationReason::AccountDeleted).await
}
