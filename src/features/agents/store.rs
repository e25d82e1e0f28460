use chrono::{DateTime, Utc};

use super::Card;
use crate::{
    db::Tx,
    error::{Code, Error, Result},
    features::inbox::{self, Reader},
    ids::{AgentId, Principal, TokenId, UserId},
};

/// An agent to be, with its first token.
pub struct NewAgent {
    pub id: AgentId,
    pub owner: UserId,
    pub display_name: String,
    pub description: Option<String>,
    pub token_id: TokenId,
    pub lookup: String,
    pub bcrypt_hash: String,
}

/// Refuses if the user has `most` agents. The lock on the user makes racing requests count one after the other.
pub async fn room_for_one(tx: &Tx, owner: UserId, most: u32) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- agents.lock_owner
            select 1 from user_account where user_id = $1 for update",
        )
        .await?;
    tx.execute(&stmt, &[&owner]).await?;
    let stmt = tx
        .prepare_cached(
            "-- agents.count
            select count(*) from agent where owner_user_id = $1",
        )
        .await?;
    let n: i64 = tx.query_one(&stmt, &[&owner]).await?.get(0);
    if n < i64::from(most) {
        return Ok(());
    }
    Err(Error::from(Code::AgentLimitExceeded).with("limit", most).with("alias", "AGT_008"))
}

pub async fn create(tx: &Tx, new: &NewAgent) -> Result<DateTime<Utc>> {
    let stmt = tx
        .prepare_cached(
            "-- agents.create
            with made as (
                insert into agent (agent_id, owner_user_id, display_name, description) values ($1, $2, $3, $4)
                returning agent_id, created_at
            ), token as (
                insert into agent_token (token_id, agent_id, lookup, bcrypt_hash) select $5, agent_id, $6, $7 from made
            )
            select created_at from made",
        )
        .await?;
    let params: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[
        &new.id,
        &new.owner,
        &new.display_name,
        &new.description,
        &new.token_id,
        &new.lookup,
        &new.bcrypt_hash,
    ];
    let row = tx.query_one(&stmt, params).await?;
    inbox::create(tx, new.id.0).await?;
    inbox::create_reader(tx, &Reader::new(Principal::Agent(new.id), "")).await?;
    Ok(row.get(0))
}

pub async fn find(tx: &Tx, id: AgentId) -> Result<Option<Card>> {
    let stmt = tx
        .prepare_cached(
            "-- agents.find
            select agent_id, display_name, owner_user_id from agent where agent_id = $1 and state <> 'deleted'",
        )
        .await?;
    let row = tx.query_opt(&stmt, &[&id]).await?;
    Ok(row.map(|row| Card { id: row.get(0), display_name: row.get(1), owner: row.get(2) }))
}
