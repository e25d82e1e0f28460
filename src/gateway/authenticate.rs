//! From the upgrade to `ready`: who is it, may it, and from where does it read?

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    Gateway,
    close::Close,
    frames::{Auth, ServerFrame},
    rate::Rate,
    socket::{Heard, Socket},
};
use crate::{
    auth::{caller::VerifiedCredential, user::UserToken},
    cursor::Cursor,
    error::{Code, Error, Result},
    ids::Principal,
    inbox::Reader,
    limits::{
        Limiter,
        quotas::{AUTH_DEADLINE, MAX_FRAMES_PER_SECOND},
        slots::{Kind, Lease},
        table::Limit,
    },
};

/// Someone who may listen.
pub struct AuthenticatedClient {
    /// Who.
    pub principal: Principal,
    /// The session or token that lets them.
    pub credential: Uuid,
    /// By what they were proven.
    pub proven: VerifiedCredential,
    /// Their place in their inbox.
    pub reader: Reader,
    /// When a user's access token ends.
    pub expires_at: Option<DateTime<Utc>>,
    /// From where they want to go on.
    pub resume: Option<Cursor>,
    /// Their place among the connections they may have.
    pub lease: Lease,
}

/// Waits for the `auth` frame and judges it; a refused guest has been told why, and the code is what to close with.
pub async fn receive(
    gateway: &Gateway,
    socket: &mut Socket,
) -> Result<AuthenticatedClient, Option<Close>> {
    let deadline = gateway.clock.now() + AUTH_DEADLINE;
    let auth = tokio::select! {
        auth = first_frame(socket) => auth?,
        () = gateway.clock.sleep_until(deadline) => return Err(Some(Close::AuthDeadline)),
    };
    let Some(auth) = auth else {
        return Err(Some(
            refuse(socket, "invalid_token", Close::AuthFailed).await,
        ));
    };
    match admit(gateway, auth).await {
        Ok(client) => {
            socket.let_in();
            socket.say(ServerFrame::AuthOk.encode()).await?;
            Ok(client)
        }
        Err(Refusal::Frame) => Err(Some(Close::BadFrame)),
        Err(Refusal::Reason(reason, close)) => Err(Some(refuse(socket, reason, close).await)),
        Err(Refusal::Failure(error)) => {
            error.log();
            Err(Some(Close::Overload))
        }
    }
}

async fn refuse(socket: &mut Socket, reason: &'static str, close: Close) -> Close {
    socket
        .say(ServerFrame::AuthError { reason }.encode())
        .await
        .err()
        .unwrap_or(close)
}

/// The first frame, if it is an `auth`; `None` inside if it names nobody.
async fn first_frame(socket: &mut Socket) -> Result<Option<Auth>, Option<Close>> {
    let mut frames = Rate::default();
    loop {
        match socket.hear().await {
            Heard::Text(text) => {
                return Auth::read(&text).map_err(|error| match error.code() {
                    // Well-formed, but something else than `auth`.
                    Code::Unauthorized => Some(Close::AuthFailed),
                    _ => Some(Close::BadFrame),
                });
            }
            Heard::Binary(_) => return Err(Some(Close::Unsupported)),
            Heard::Alive if frames.over(MAX_FRAMES_PER_SECOND) => return Err(Some(Close::Flood)),
            Heard::Alive => {}
            Heard::Gone => return Err(None),
            Heard::Fault(close) => return Err(Some(close)),
        }
    }
}

enum Refusal {
    Frame,
    Reason(&'static str, Close),
    Failure(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error.code() {
            Code::Unauthorized | Code::AgentTokenInvalid => {
                Refusal::Reason("invalid_token", Close::AuthFailed)
            }
            Code::RateLimited => Refusal::Reason("rate_limited", Close::Flood),
            Code::ValidationError => Refusal::Frame,
            _ => Refusal::Failure(error),
        }
    }
}

async fn admit(gateway: &Gateway, auth: Auth) -> Result<AuthenticatedClient, Refusal> {
    let limiter = Limiter::detached(gateway.limits.clone());
    match auth {
        Auth::Agent {
            agent_id,
            token,
            resume,
        } => {
            let claim = gateway.agent_tokens.recognise(&token).await?;
            if claim.agent != agent_id {
                return Err(Error::from(Code::AgentTokenInvalid).into());
            }
            let agent = claim
                .verify(&gateway.db, &gateway.agent_tokens.dead)
                .await?;
            gateway.agent_tokens.used.note(agent.token);
            limiter.check(Limit::WsConnect, agent.id).await?;
            let principal = Principal::Agent(agent.id);
            Ok(AuthenticatedClient {
                principal,
                credential: agent.token.0,
                proven: VerifiedCredential::agent(
                    claim,
                    gateway.db.clone(),
                    gateway.agent_tokens.dead.clone(),
                ),
                reader: Reader::new(principal, ""),
                expires_at: None,
                resume: cursor(resume)?,
                lease: slot(gateway, principal, "").await?,
            })
        }
        Auth::User {
            access_token,
            resume,
        } => {
            let claim =
                UserToken::from_token(&gateway.access_tokens, &access_token).map_err(|error| {
                    if gateway.access_tokens.is_expired(&access_token) {
                        Refusal::Reason("token_expired", Close::AuthFailed)
                    } else {
                        error.into()
                    }
                })?;
            let user = claim
                .verify(&gateway.db, &gateway.access_tokens.dead)
                .await?;
            limiter.check(Limit::WsConnect, user.id).await?;
            let principal = Principal::User(user.id);
            Ok(AuthenticatedClient {
                principal,
                credential: user.session.0,
                reader: Reader::new(principal, &user.device_id),
                expires_at: Some(claim.expires_at),
                proven: VerifiedCredential::user(
                    claim,
                    gateway.db.clone(),
                    gateway.access_tokens.dead.clone(),
                ),
                resume: cursor(resume)?,
                lease: slot(gateway, principal, &user.device_id).await?,
            })
        }
    }
}

async fn slot(gateway: &Gateway, principal: Principal, device: &str) -> Result<Lease, Refusal> {
    let lease = gateway.slots.take(principal, Kind::Websocket, device).await;
    lease.ok_or(Refusal::Reason("connection_limit", Close::ConnectionLimit))
}

fn cursor(resume: Option<String>) -> Result<Option<Cursor>, Refusal> {
    resume
        .map(|text| text.parse().map_err(|_| Refusal::Frame))
        .transpose()
}
