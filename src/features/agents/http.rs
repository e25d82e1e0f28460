//! `POST /agents`.

use axum::extract::State;
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::store;
use crate::{
    app::Quotas,
    auth::{agent::NewToken, secret::Hasher, user::User},
    db::Db,
    error::Result,
    http::{Created, Json, json::Text},
    ids::{AgentId, TokenId},
    limits::{Limiter, table::Limit},
    random::Random,
};

#[derive(Deserialize)]
pub struct CreateAgent {
    display_name: Text<1, 200>,
    description: Option<Text<0, 2000>>,
}

/// A new agent with its token, which is never shown again.
#[derive(Serialize)]
pub struct CreatedAgent {
    agent_id: AgentId,
    token: String,
    display_name: String,
    state: &'static str,
    #[serde(serialize_with = "crate::clock::as_iso")]
    created_at: DateTime<Utc>,
}

/// `POST /agents`: makes an agent and its token.
///
/// Caller: user. Limit: `default_user`, 120/min. Body `{display_name, description?}`. Answers 201 with [`CreatedAgent`].
/// Errors: `AGENT_LIMIT_EXCEEDED` for the 51st (operator's setting), `params {limit, alias}`.
pub async fn create(
    user: User,
    limiter: Limiter,
    State(db): State<Db>,
    State(random): State<Random>,
    State(hasher): State<Hasher>,
    State(quotas): State<Quotas>,
    Json(body): Json<CreateAgent>,
) -> Result<Created<CreatedAgent>> {
    limiter.take_here(Limit::DefaultUser, user.id).await?;
    // Refused before the costly hash, where it can be; decided under the lock below.
    let tx = db.begin("agents.count").await?;
    store::room_for_one(&tx, user.id, quotas.agents_per_user).await?;
    tx.commit().await?;
    let token = NewToken::mint(&random);
    let hash = hasher.hash_token(token.token.expose_secret().to_owned()).await?;
    let new = store::NewAgent {
        id: AgentId::mint(&random),
        owner: user.id,
        display_name: body.display_name.0,
        description: body.description.map(|text| text.0),
        token_id: TokenId::mint(&random),
        lookup: token.lookup,
        bcrypt_hash: hash,
    };
    let tx = db.begin("agents.create").await?;
    store::room_for_one(&tx, user.id, quotas.agents_per_user).await?;
    let created_at = store::create(&tx, &new).await?;
    tx.commit().await?;
    Ok(Created(CreatedAgent {
        agent_id: new.id,
        token: token.token.expose_secret().to_owned(),
        display_name: new.display_name,
        state: "registered",
        created_at,
    }))
}
