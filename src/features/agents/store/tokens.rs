use blindpipe_protocol::revocation::RevocationReason;
use chrono::{DateTime, Utc};

use super::seconds;
use crate::{
    db::Db,
    error::Result,
    ids::{AgentId, CredentialId, SessionId, TokenId},
    limits::quotas::AGENT_GRACE,
    work::Tx,
};

/// Adds the token that a session of the owner has made.
pub async fn add_token(
    tx: &Tx,
    agent: AgentId,
    (lookup, bcrypt_hash): (&str, &str),
    session: SessionId,
) -> Result<()> {
    let id = TokenId::generate(tx.random());
    tx.execute(
        "-- agents.add_token
        insert into agent_token (token_id, agent_id, lookup, bcrypt_hash, session_id) values ($1, $2, $3, $4, $5)",
        &[&id, &agent, &lookup, &bcrypt_hash, &session],
    )
    .await?;
    Ok(())
}

/// Starts the current token's grace and returns its end. Tokens in grace keep theirs.
pub async fn end_current_token(tx: &Tx, agent: AgentId) -> Result<Option<DateTime<Utc>>> {
    Ok(tx
        .query(
            "-- agents.end_current_token
            update agent_token set valid_until = app_now() + make_interval(secs => $2)
            where agent_id = $1 and revoked_at is null and valid_until is null
            returning valid_until",
            &[&agent, &seconds(AGENT_GRACE)],
        )
        .await?
        .first()
        .map(|row| row.get("valid_until")))
}

/// Revokes every token. True if any was still valid.
pub async fn revoke_tokens(tx: &Tx, agent: AgentId, reason: RevocationReason) -> Result<bool> {
    let revoked: Vec<CredentialId> = tx
        .query(
            "-- agents.revoke_tokens
            update agent_token set revoked_at = app_now(), bcrypt_hash = null, revoke_reason = $2
            where agent_id = $1 and revoked_at is null
            returning token_id",
            &[&agent, &reason],
        )
        .await?
        .iter()
        .map(|row| row.get("token_id"))
        .collect();
    let any = !revoked.is_empty();
    tx.revoke(revoked, reason);
    Ok(any)
}

/// Revokes one token. False if it was over.
pub async fn revoke_token(tx: &Tx, token: TokenId, reason: RevocationReason) -> Result<bool> {
    let revoked = tx
        .execute(
            "-- agents.revoke_token
            update agent_token set revoked_at = app_now(), bcrypt_hash = null, revoke_reason = $2
            where token_id = $1 and revoked_at is null",
            &[&token, &reason],
        )
        .await?
        > 0;
    if revoked {
        tx.revoke(vec![token.into()], reason);
    }
    Ok(revoked)
}

/// The time of the last revocation of its tokens.
pub async fn revoked_at(tx: &Tx, agent: AgentId) -> Result<DateTime<Utc>> {
    Ok(tx
        .query_one(
            "-- agents.revoked_at
    select coalesce(max(revoked_at), app_now()) as revoked_at from agent_token where agent_id = $1",
            &[&agent],
        )
        .await?
        .get("revoked_at"))
}

/// Makes the newest token in grace the current one again, if the agent has no current one. False if
/// it has no token at all.
pub async fn restore_token(tx: &Tx, agent: AgentId) -> Result<bool> {
    tx.execute(
        "-- agents.restore_token
        update agent_token set valid_until = null
        where token_id = (select token_id from live_agent_token where agent_id = $1 order by created_at desc limit 1)
            and not exists (select from live_agent_token where agent_id = $1 and valid_until is null)",
        &[&agent],
    )
    .await?;
    Ok(tx
        .query_opt(
            "-- agents.has_token
            select 1 from live_agent_token where agent_id = $1 limit 1",
            &[&agent],
        )
        .await?
        .is_some())
}

/// Clears some of the hashes whose grace is over. True while there may be more.
pub async fn retire_tokens(db: &Db) -> Result<bool> {
    let client = db.write().await?;
    Ok(client
        .execute(
            "-- agents.retire_tokens
            update agent_token set revoked_at = valid_until, bcrypt_hash = null, revoke_reason = 'token_regenerated'
            where token_id = any(array(
                select token_id from agent_token where valid_until <= app_now() and revoked_at is null
                order by valid_until limit 1000 for update skip locked
            ))",
            &[],
        )
        .await?
        == 1000)
}

/// Writes the notes without waiting for row locks: the next use of a locked row writes it.
pub async fn note_uses(db: &Db, tokens: &[TokenId]) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- agents.note_uses
            with free as materialized (
                select token_id from agent_token where token_id = any($1) and revoked_at is null for update skip locked
            )
            update agent_token t set last_used_at = app_now() from free where t.token_id = free.token_id",
            &[&tokens],
        )
        .await?;
    Ok(())
}
