//! `POST /auth/refresh`, and the end of a session whose refresh token was stolen, with the agent
//! tokens that it made and the webhooks that it set.

use axum::{
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::{accounts::Refreshed, text::Secret};

use crate::{
    error::{Code, Result},
    features::{accounts::Accounts, agents, devices},
    http::{Data, client::ClientIp},
    ids::SessionId,
    limits::{
        Limiter,
        quotas::{ACCESS_TOKEN_TTL, REFRESH_GRACE, REFRESH_TOKEN_TTL},
        table::Limit,
    },
    metrics,
    work::UnitOfWork,
};

/// `POST /auth/refresh`: the next access token and refresh cookie.
///
/// Caller: the holder of the cookie; no body. Limit: `auth_refresh`, 60/min per session. Answers
/// 200 `{access_token, expires_in_seconds, user_id, device_id}`. The predecessor gives the same
/// successor for 10 s. Later use means theft: the session ends on every node, and so do the agent
/// tokens that it made. Errors: `TOKEN_EXPIRED`.
pub async fn refresh(
    State(accounts): State<Accounts>,
    limiter: Limiter,
    ip: ClientIp,
    headers: HeaderMap,
) -> Result<Response> {
    let Some((session, generation)) = accounts.refresh_tokens.read(&headers) else {
        limiter.check_route(Limit::DefaultIp, ip).await?;
        return Err(Code::TokenExpired.into());
    };
    // Each use gives another token, so a limit per token would never apply. The session has the
    // limit.
    limiter.check(Limit::Refresh, session).await?;
    let Some(refreshed) = rotate(&accounts, session, generation).await? else {
        if end_reused(&accounts.work, session, generation).await? {
            metrics::session_stolen();
            tracing::warn!(
                operation = "sessions.refresh",
                %session,
                remedy = "its session is over",
                "an old refresh token came back"
            );
        }
        return Err(Code::TokenExpired.into());
    };
    let devices::RefreshedSession {
        user,
        device_id,
        generation,
        was_ahead,
    } = refreshed;
    if was_ahead {
        metrics::session_ahead();
    }
    let data = Refreshed {
        access_token: Secret(accounts.access_tokens.sign(user, &device_id, session)?),
        expires_in_seconds: ACCESS_TOKEN_TTL.as_secs(),
        user_id: user,
        device_id,
    };
    let cookie = accounts.refresh_tokens.cookie(session, generation);
    Ok(([(header::SET_COOKIE, cookie)], Data(data)).into_response())
}

/// Rotates a refresh token. A predecessor whose holder got no answer has no end of its grace: the
/// commit may have waited for a standby far longer than that.
async fn rotate(
    accounts: &Accounts,
    session: SessionId,
    generation: i32,
) -> Result<Option<devices::RefreshedSession>> {
    let db = accounts.work.db();
    let rotated = async |grace| devices::refresh(db, session, generation, grace).await;
    let outcome = match rotated(REFRESH_GRACE).await {
        Ok(None) if accounts.unanswered.has(session, generation).await => {
            rotated(REFRESH_TOKEN_TTL).await
        }
        outcome => outcome,
    };
    if let Err(error) = &outcome
        && error.is_ours()
    {
        accounts.unanswered.note(session, generation).await;
    }
    outcome
}

/// Ends the session if this generation of its refresh token is long over. False if it was not.
async fn end_reused(work: &UnitOfWork, session: SessionId, generation: i32) -> Result<bool> {
    let ended = work.run("sessions.end_stolen", async |tx| {
        let is_reused = devices::end_reused(tx, session, generation).await?;
        if is_reused {
            agents::end_works_of(tx, session).await?;
        }
        Ok(is_reused)
    });
    ended.await
}
