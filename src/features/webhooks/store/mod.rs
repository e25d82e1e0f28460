//! The rows of webhooks, of their turns and of their deliveries.

pub mod deliveries;
pub mod ledger;
pub mod seals;
pub mod stops;
pub mod turns;

use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::WebhookStatus;
use crate::{
    auth::owned::NamedAgent,
    db::Db,
    error::{Code, Result},
    features::agents::{self, DeliveryMode},
    ids::{AgentId, CredentialId, UserId},
    work::Tx,
};

/// A webhook's row.
pub struct WebhookRow {
    pub agent: AgentId,
    pub url: String,
    pub status: WebhookStatus,
    /// The most events of a call.
    pub max_events: i32,
    /// The credential of calls under way.
    pub credential: CredentialId,
    pub sealed_secret: Option<Vec<u8>>,
    /// The previous secret, while it signs.
    pub sealed_previous: Option<Vec<u8>>,
    pub previous_valid_until: Option<DateTime<Utc>>,
    pub last_error: Option<String>,
    pub verified_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

fn webhook(row: &Row) -> WebhookRow {
    WebhookRow {
        agent: row.get("agent_id"),
        url: row.get("url"),
        status: row.get("status"),
        max_events: row.get("max_events"),
        credential: row.get("credential_id"),
        sealed_secret: row.get("sealed_secret"),
        sealed_previous: row.get("sealed_previous"),
        previous_valid_until: row.get("previous_valid_until"),
        last_error: row.get("last_error"),
        verified_at: row.get("verified_at"),
        created_at: row.get("created_at"),
        updated_at: row.get("updated_at"),
    }
}

/// Reads a webhook; none if the agent has none. A previous secret whose time is over is left out.
pub async fn find(db: &Db, agent: AgentId) -> Result<Option<WebhookRow>> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- webhooks.find
            select agent_id, url, status, max_events, credential_id, sealed_secret, last_error, verified_at, created_at, updated_at,
                case when previous_valid_until > app_now() then sealed_previous end as sealed_previous,
                case when previous_valid_until > app_now() then previous_valid_until end as previous_valid_until
            from webhook where agent_id = $1",
            &[&agent],
        )
        .await?;
    Ok(row.as_ref().map(webhook))
}

/// The user who owns an agent.
pub async fn owner(db: &Db, agent: AgentId) -> Result<UserId> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- webhooks.owner
            select owner_user_id from agent where agent_id = $1",
            &[&agent],
        )
        .await?;
    Ok(row.ok_or(Code::AgentNotRegistered)?.get("owner_user_id"))
}

/// Locks the webhook. Its agent is locked already.
pub async fn lock(tx: &Tx, agent: AgentId) -> Result<Option<WebhookRow>> {
    let row = tx
        .query_opt(
            "-- webhooks.lock
            select agent_id, url, status, max_events, credential_id, sealed_secret, sealed_previous, previous_valid_until, last_error,
                verified_at, created_at, updated_at
            from webhook where agent_id = $1 for no key update",
            &[&agent],
        )
        .await?;
    Ok(row.as_ref().map(webhook))
}

/// Sets the address, the secret and the most events of a call, for a session or for the agent itself.
/// The webhook waits for its verification.
pub async fn put(
    tx: &Tx,
    agent: &NamedAgent,
    url: &str,
    credential: CredentialId,
    sealed_secret: &[u8],
    max_events: i32,
) -> Result<WebhookRow> {
    let row = tx
        .query_one(
            "-- webhooks.put
            insert into webhook as w (agent_id, url, status, credential_id, sealed_secret, url_session_id, secret_session_id, max_events)
            values ($1, $2, 'pending_verification', $3, $4, $5, $5, $6)
            on conflict (agent_id) do update set url = $2, status = 'pending_verification', credential_id = $3,
                sealed_secret = $4, sealed_previous = null, previous_valid_until = null, last_error = null,
                verified_at = null, updated_at = app_now(), url_session_id = $5, secret_session_id = $5, max_events = $6
            returning agent_id, url, status, max_events, credential_id, sealed_secret, sealed_previous, previous_valid_until, last_error,
                verified_at, created_at, updated_at",
            &[&agent.id, &url, &credential, &sealed_secret, &agent.by.session(), &max_events],
        )
        .await?;
    agents::set_delivery_mode(tx, agent.id, DeliveryMode::Webhook).await?;
    turns::close(tx, agent.id).await?;
    Ok(webhook(&row))
}

/// Sets the secret, after which the webhook waits for its verification again.
pub async fn renew_secret(tx: &Tx, agent: &NamedAgent, sealed_secret: &[u8]) -> Result<()> {
    tx.execute(
        "-- webhooks.renew_secret
        update webhook set status = 'pending_verification', sealed_secret = $2, sealed_previous = null,
            previous_valid_until = null, updated_at = app_now(), secret_session_id = $3
        where agent_id = $1",
        &[&agent.id, &sealed_secret, &agent.by.session()],
    )
    .await?;
    Ok(())
}

/// Sets the secret. The present one signs for `overlap_seconds` more.
pub async fn rotate_secret(
    tx: &Tx,
    agent: &NamedAgent,
    sealed_secret: &[u8],
    overlap_seconds: f64,
) -> Result<WebhookRow> {
    let row = tx
        .query_one(
            "-- webhooks.rotate_secret
            update webhook set sealed_secret = $2, updated_at = app_now(), secret_session_id = $4,
                sealed_previous = case when $3::float8 > 0 then sealed_secret end,
                previous_valid_until = case when $3::float8 > 0 and sealed_secret is not null
                    then app_now() + make_interval(secs => $3) end
            where agent_id = $1
            returning agent_id, url, status, max_events, credential_id, sealed_secret, sealed_previous, previous_valid_until, last_error,
                verified_at, created_at, updated_at",
            &[
                &agent.id,
                &sealed_secret,
                &overlap_seconds,
                &agent.by.session(),
            ],
        )
        .await?;
    Ok(webhook(&row))
}

/// Records the outcome of a challenge, unless the address has changed meanwhile.
pub async fn conclude_challenge(
    tx: &Tx,
    agent: AgentId,
    credential: CredentialId,
    error: Option<&str>,
) -> Result<Option<WebhookRow>> {
    let row = tx
        .query_opt(
            "-- webhooks.conclude_challenge
            update webhook set last_error = $3, updated_at = app_now(),
                status = case when $3::text is null then 'active' else 'pending_verification' end,
                verified_at = case when $3::text is null then app_now() else verified_at end
            where agent_id = $1 and credential_id = $2
            returning agent_id, url, status, max_events, credential_id, sealed_secret, sealed_previous, previous_valid_until, last_error,
                verified_at, created_at, updated_at",
            &[&agent, &credential, &error],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    if error.is_none() {
        turns::open(tx, agent).await?;
    } else {
        turns::close(tx, agent).await?;
    }
    Ok(Some(webhook(&row)))
}

/// Removes the webhook and its turn. True if there was one.
pub async fn delete(tx: &Tx, agent: AgentId) -> Result<Option<DateTime<Utc>>> {
    let row = tx
        .query_opt(
            "-- webhooks.delete
            delete from webhook where agent_id = $1 returning app_now() as at",
            &[&agent],
        )
        .await?;
    if row.is_some() {
        agents::set_delivery_mode(tx, agent, DeliveryMode::Pull).await?;
    }
    Ok(row.map(|row| row.get("at")))
}
