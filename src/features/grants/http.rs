//! `POST /agents/{agent_id}/grants/request`, `GET /grants`, `POST /grants/{grant_id}/decision`,
//! `DELETE /grants/{grant_id}`.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use blindpipe_protocol::grants::{DecideGrant, Grant, GrantsQuery, RequestGrant};

use super::{rules, store};
use crate::{
    auth::{agent::Agent, user::User},
    db::Db,
    error::Result,
    http::{Data, Json, List, Page, Path, Query},
    ids::GrantId,
    work::UnitOfWork,
};

/// `POST /agents/{agent_id}/grants/request`: asks a user for permission scopes.
///
/// Caller: agent. Limit: `agent_grant_request`, 10/min per agent. Body `{conversation_id, user_id?,
/// scopes[], reason?, ttl_seconds?}`; `user_id` is required in groups. Answers 201 with the pending
/// [`Grant`], 200 if the same request waits already. Publishes `grant.requested` to both. Errors:
/// `NOT_FOUND`, `RELATION_REQUIRED`, `SCOPE_NOT_DECLARED`.
pub async fn request(
    agent: Agent,
    State(work): State<UnitOfWork>,
    Json(body): Json<RequestGrant>,
) -> Result<Response> {
    let scopes = rules::requested(&body)?;
    let requested = work.run("grants.request", async |tx| {
        store::request(tx, agent, &body, scopes).await
    });
    let (grant, is_new) = requested.await?;
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Data(grant)).into_response())
}

/// `GET /grants?state=&agent_id=&conversation_id=&limit=&cursor=`: the caller's grants, newest
/// first.
///
/// Caller: user. Answers 200 with [`Grant`]s.
pub async fn list(
    user: User,
    State(db): State<Db>,
    Query(filter): Query<GrantsQuery>,
    Query(page): Query<Page<GrantId>>,
) -> Result<List<Grant>> {
    let grants = store::list(&db, user.id, &filter, page.cursor, page.rows()).await?;
    Ok(page.of(grants, |grant| grant.grant_id))
}

/// `POST /grants/{grant_id}/decision`: approves all or some of the requested scopes, or denies.
///
/// Caller: the user who was asked. Body `{decision:"approve|deny", scopes?}`. Answers 200 with the
/// [`Grant`]. Publishes `grant.decided` to both. Errors: `NOT_FOUND`, `ALREADY_DECIDED`.
pub async fn decide(
    user: User,
    State(work): State<UnitOfWork>,
    Path(id): Path<GrantId>,
    Json(body): Json<DecideGrant>,
) -> Result<Data<Grant>> {
    let decided = work.run("grants.decide", async |tx| {
        store::decide(tx, &user, id, &body).await
    });
    decided.await.map(Data)
}

/// `DELETE /grants/{grant_id}`: revokes a grant, or refuses a pending one.
///
/// Caller: its user. Answers 200 with the [`Grant`], also when it had ended before. Publishes
/// `grant.revoked` to both, and denies its pending tool calls. Errors: `NOT_FOUND`.
pub async fn revoke(
    user: User,
    State(work): State<UnitOfWork>,
    Path(id): Path<GrantId>,
) -> Result<Data<Grant>> {
    let revoked = work.run("grants.revoke", async |tx| {
        store::revoke(tx, user.id, id).await
    });
    revoked.await.map(Data)
}
