mod ends;
mod keys;
mod tokens;
mod view;
mod webhook;

use chrono::{DateTime, Utc};

pub use self::{
    ends::{end_all, end_works_of, mark_revoked, mark_webhooks_revoked},
    keys::{
        Key, bump_list, end_current_key, end_keys, key_list_version, keys, publish_ending_keys,
        put_key, retire_keys, with_ended_keys,
    },
    tokens::{
        add_token, end_current_token, note_uses, restore_token, retire_tokens, revoke_token,
        revoke_tokens, revoked_at,
    },
    view::{AgentRow, Viewer, find_visible, list},
    webhook::{resume_webhook, suspend_webhooks},
};
use super::{AgentState, DeliveryMode, LockedAgent, seconds};
use crate::{
    auth::{
        agent::lock_live_token,
        owned::{ActingAs, NamedAgent, OwnedAgent},
        user,
    },
    db::Db,
    error::{Code, Error, Result},
    ids::{AgentId, Principal, SessionId, UserId},
    inbox::{self, Reader},
    jobs::Job,
    work::Tx,
};

/// An agent that is to be created.
pub struct NewAgent<'a> {
    pub id: AgentId,
    pub owner: UserId,
    pub display_name: &'a str,
    pub description: Option<&'a str>,
    pub manifest: Option<&'a str>,
}

/// Reserves a place for one more agent without a token, or refuses if the user has `max_agents`.
/// The lock on the user serialises racing requests. Refuses a user or session that has ended
/// meanwhile.
pub async fn reserve(
    tx: &Tx,
    new: &NewAgent<'_>,
    session: SessionId,
    max_agents: u32,
) -> Result<()> {
    tx.execute(
        "-- agents.lock_owner
        select 1 from user_account where user_id = $1 for update",
        &[&new.owner],
    )
    .await?;
    user::lock_live_session(tx, new.owner, session).await?;
    let n: i64 = tx
        .query_one(
            "-- agents.count
            select count(*) as agents from agent where owner_user_id = $1 and state <> 'deleted'",
            &[&new.owner],
        )
        .await?
        .get("agents");
    if n >= i64::from(max_agents) {
        return Err(Error::from(Code::AgentLimitExceeded)
            .with("limit", max_agents)
            .with("alias", "AGT_008"));
    }
    let params: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[
        &new.id,
        &new.owner,
        &new.display_name,
        &new.description,
        &new.manifest,
        &session,
    ];
    tx.execute(
        "-- agents.reserve
        insert into agent (agent_id, owner_user_id, display_name, description, manifest, manifest_version, state, session_id)
        values ($1, $2, $3, $4, $5, case when $5::text is null then 0 else 1 end, 'token_revoked', $6)", params,
    )
    .await?;
    inbox::create(tx, new.id.into()).await?;
    inbox::create_reader(tx, &Reader::new(Principal::Agent(new.id), "")).await
}

/// Opens the reserved agent, which now has its token. None if its owner changed it first.
pub async fn open(tx: &Tx, id: AgentId) -> Result<Option<DateTime<Utc>>> {
    Ok(tx
        .query_opt(
            "-- agents.open
            update agent set state = 'registered' where agent_id = $1 and state = 'token_revoked' returning created_at",
            &[&id],
        )
        .await?
        .map(|row| row.get("created_at")))
}

/// Gives up a reserved agent. Its owner may have found it meanwhile and written to it.
pub async fn give_up(tx: &Tx, agent: AgentId, owner: UserId) -> Result<()> {
    let given_up = tx
        .execute(
            "-- agents.give_up
            update agent set state = 'deleted', deleted_at = app_now() where agent_id = $1 and state = 'token_revoked'",
            &[&agent],
        )
        .await?;
    if given_up > 0 {
        tx.enqueue(Job::EraseAgent { agent, owner });
    }
    Ok(())
}

pub async fn of_owner(db: &Db, owner: UserId) -> Result<Vec<AgentId>> {
    let client = db.read().await?;
    let rows = client
        .query(
            "-- agents.of_owner
            select agent_id from agent where owner_user_id = $1 order by agent_id",
            &[&owner],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("agent_id")).collect())
}

/// The lock prevents a deletion until the end of the transaction, and nothing else.
pub async fn find(tx: &Tx, id: AgentId) -> Result<Option<AgentId>> {
    let row = tx
        .query_opt(
            "-- agents.find
            select agent_id from agent where agent_id = $1 and state <> 'deleted' for share",
            &[&id],
        )
        .await?;
    Ok(row.map(|row| row.get("agent_id")))
}

/// Locks an agent's row. This lock comes before all others except a user's.
pub async fn lock(tx: &Tx, id: AgentId) -> Result<Option<LockedAgent>> {
    let row = tx
        .query_opt(
            "-- agents.lock
            select owner_user_id, state from agent where agent_id = $1 and state <> 'deleted' for no key update",
            &[&id],
        )
        .await?;
    Ok(row.map(|row| LockedAgent {
        id,
        owner: row.get("owner_user_id"),
        state: row.get("state"),
    }))
}

/// Locks an agent for its owner. The owner's session stays valid until the transaction ends.
pub async fn lock_owned(tx: &Tx, agent: &OwnedAgent) -> Result<LockedAgent> {
    user::lock_live_session(tx, agent.owner, agent.session).await?;
    let locked = lock(tx, agent.id)
        .await?
        .filter(|locked| locked.owner == agent.owner);
    locked.ok_or_else(|| Code::AgentNotRegistered.into())
}

/// Locks an agent for its owner or itself. The lock re-checks the token: the work of a stolen token
/// must not outlive its revocation.
pub async fn lock_named(tx: &Tx, agent: &NamedAgent) -> Result<LockedAgent> {
    match agent.by {
        ActingAs::Owner(owner, session) => {
            lock_owned(
                tx,
                &OwnedAgent {
                    owner,
                    session,
                    id: agent.id,
                },
            )
            .await
        }
        ActingAs::Itself(token) => {
            let locked = lock(tx, agent.id).await?.ok_or(Code::AgentTokenInvalid)?;
            lock_live_token(tx, agent.id, token).await?;
            Ok(locked)
        }
    }
}

/// Returns the time of the change.
pub async fn set_state(tx: &Tx, id: AgentId, state: AgentState) -> Result<DateTime<Utc>> {
    Ok(tx
        .query_one(
            "-- agents.set_state
            update agent set state = $2,
                unreachable_since = case when $2 = 'unreachable' then app_now() end,
                deleted_at = case when $2 = 'deleted' then app_now() end
            where agent_id = $1 returning app_now() as at",
            &[&id, &state],
        )
        .await?
        .get("at"))
}

/// The time of its deletion.
pub async fn deleted_at(tx: &Tx, id: AgentId) -> Result<DateTime<Utc>> {
    Ok(tx
        .query_one(
            "-- agents.deleted_at
            select deleted_at from agent where agent_id = $1",
            &[&id],
        )
        .await?
        .get("deleted_at"))
}

/// The unreachable ones among `agents`.
pub async fn unreachable(db: &Db, agents: &[AgentId]) -> Result<Vec<AgentId>> {
    let client = db.read().await?;
    Ok(client
        .query(
            "-- agents.unreachable
            select agent_id from agent where state = 'unreachable' and agent_id = any($1)",
            &[&agents],
        )
        .await?
        .iter()
        .map(|row| row.get("agent_id"))
        .collect())
}

/// The agent's current state.
pub async fn state(db: &Db, id: AgentId) -> Result<AgentState> {
    let client = db.read().await?;
    Ok(client
        .query_one(
            "-- agents.state
            select state from agent where agent_id = $1",
            &[&id],
        )
        .await?
        .get("state"))
}

/// The stored manifest and its version.
pub async fn manifest(tx: &Tx, id: AgentId) -> Result<(Option<String>, i32)> {
    let row = tx
        .query_one(
            "-- agents.manifest
            select manifest, manifest_version from agent where agent_id = $1",
            &[&id],
        )
        .await?;
    Ok((row.get("manifest"), row.get("manifest_version")))
}

/// Only the version, outside of a transaction.
pub async fn manifest_version(db: &Db, id: AgentId) -> Result<i32> {
    let client = db.read().await?;
    Ok(client
        .query_one(
            "-- agents.manifest_version
            select manifest_version from agent where agent_id = $1",
            &[&id],
        )
        .await?
        .get("manifest_version"))
}

/// Returns the new version.
pub async fn put_manifest(tx: &Tx, id: AgentId, text: &str) -> Result<i32> {
    Ok(tx
        .query_one(
            "-- agents.put_manifest
            update agent set manifest = $2, manifest_version = manifest_version + 1 where agent_id = $1
            returning manifest_version",
            &[&id, &text],
        )
        .await?
        .get("manifest_version"))
}

/// Changes what is given.
pub async fn put_profile(
    tx: &Tx,
    id: AgentId,
    name: Option<&str>,
    purpose: Option<&str>,
) -> Result<()> {
    tx.execute(
        "-- agents.put_profile
        update agent set display_name = coalesce($2, display_name), description = coalesce($3, description)
        where agent_id = $1",
        &[&id, &name, &purpose],
    )
    .await?;
    Ok(())
}

/// Sets the way in which events reach the agent.
pub async fn set_delivery_mode(tx: &Tx, agent: AgentId, mode: DeliveryMode) -> Result<()> {
    tx.execute(
        "-- agents.set_delivery_mode
        update agent set delivery_mode = $2 where agent_id = $1 and delivery_mode <> $2",
        &[&agent, &mode],
    )
    .await?;
    Ok(())
}
