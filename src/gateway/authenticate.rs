//! Authentication of a socket, from the upgrade to `ready`.

use std::time::Instant;

use blindpipe_protocol::frames::Empty;
use chrono::{DateTime, Utc};

use super::{
    Gateway,
    close::{Close, SessionEnd},
    frames::{self, Auth, AuthErrorReason, ServerFrame},
    rate::Rate,
    session::SharedSocket,
    socket::{Incoming, Socket},
};
use crate::{
    auth::{
        agent::{Agent, AgentToken},
        caller::VerifiedCredential,
        user::UserToken,
    },
    cursor::Cursor,
    error::{Code, Error, Result},
    ids::{ConnectionId, Credential, Principal},
    inbox::{
        Reader,
        groups::{self, Member},
    },
    limits::{
        Limiter,
        address::ClientIp,
        buffers::Owner,
        quotas::{AUTH_DEADLINE, MAX_FRAMES_PER_SECOND},
        slots::{ConnectionKind, Lease},
        table::Limit,
    },
};

/// A client that has authenticated.
pub struct AuthenticatedClient {
    pub principal: Principal,
    /// The session or token that authorises the client.
    pub credential: Credential,
    /// The credential in a form that can be checked again.
    pub verified: VerifiedCredential,
    /// The client's reader in its inbox.
    pub reader: Reader,
    /// The end of a user's access token; none for an agent.
    pub expires_at: Option<DateTime<Utc>>,
    /// The cursor after which the client wants to read.
    pub resume: Option<Cursor>,
    /// The lease of the client's connection slot.
    pub lease: Lease,
    /// The place of a shared socket in its consumer group.
    pub shared: Option<Box<SharedSocket>>,
}

/// Waits for the `auth` frame and checks it. A refused client has already been sent the reason. The
/// error is the close code.
pub async fn receive(
    gateway: &Gateway,
    socket: &mut Socket,
    ip: ClientIp,
) -> Result<AuthenticatedClient, SessionEnd> {
    let deadline = gateway.clock.now() + AUTH_DEADLINE;
    let auth = tokio::select! {
        auth = first_frame(socket) => auth?,
        () = gateway.clock.sleep_until(deadline) => return Err(Close::AuthDeadline.into()),
    };
    let Some(auth) = auth else {
        return Err(
            refuse(socket, AuthErrorReason::InvalidToken, Close::AuthFailed)
                .await
                .into(),
        );
    };
    match admit(gateway, auth, ip).await {
        Ok(client) => {
            let owner = Owner::Principal(client.principal.id());
            socket.admit(gateway.buffers.clone(), owner);
            socket
                .say(frames::encode(&ServerFrame::AuthOk(Empty {})))
                .await?;
            Ok(client)
        }
        Err(Refusal::Frame) => Err(Close::BadFrame.into()),
        Err(Refusal::Reason(reason, close)) => Err(refuse(socket, reason, close).await.into()),
        Err(Refusal::Failure(error)) => {
            error.log_in(
                "gateway.authenticate",
                "the socket closes and its client reconnects",
            );
            Err(Close::Overload.into())
        }
    }
}

async fn refuse(socket: &mut Socket, reason: AuthErrorReason, close: Close) -> Close {
    socket
        .say(frames::auth_error(reason))
        .await
        .err()
        .unwrap_or(close)
}

/// The first frame, if it is an `auth`. The inner `None` means that it names no principal.
async fn first_frame(socket: &mut Socket) -> Result<Option<Auth>, SessionEnd> {
    let mut frames = Rate::default();
    loop {
        match socket.receive().await {
            Incoming::Text(text) => {
                return Auth::read(&text).map_err(|error| match error.code() {
                    // The frame is well-formed, but no `auth`.
                    Code::Unauthorized => Close::AuthFailed.into(),
                    _ => Close::BadFrame.into(),
                });
            }
            Incoming::Binary(_) => return Err(Close::Unsupported.into()),
            Incoming::Alive if frames.over(MAX_FRAMES_PER_SECOND) => {
                return Err(Close::Flood.into());
            }
            Incoming::Alive => {}
            Incoming::Gone => return Err(SessionEnd::PeerGone),
            Incoming::Fault(close) => return Err(close.into()),
        }
    }
}

enum Refusal {
    Frame,
    Reason(AuthErrorReason, Close),
    Failure(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error.code() {
            Code::Unauthorized | Code::AgentTokenInvalid => {
                Refusal::Reason(AuthErrorReason::InvalidToken, Close::AuthFailed)
            }
            Code::RateLimited => Refusal::Reason(AuthErrorReason::RateLimited, Close::Flood),
            Code::ValidationError => Refusal::Frame,
            _ => Refusal::Failure(error),
        }
    }
}

async fn admit(
    gateway: &Gateway,
    auth: Auth,
    ip: ClientIp,
) -> Result<AuthenticatedClient, Refusal> {
    match auth {
        Auth::Agent {
            agent_id,
            token,
            resume,
            group,
        } => {
            let agent_token = gateway.agent_tokens.authenticate(&token, ip).await?;
            if agent_token.agent != agent_id {
                return Err(Error::from(Code::AgentTokenInvalid).into());
            }
            admit_agent(gateway, agent_token, resume, group).await
        }
        Auth::User {
            access_token,
            resume,
        } => {
            let user_token =
                UserToken::from_token(&gateway.access_tokens, &access_token).map_err(|error| {
                    if gateway.access_tokens.is_expired(&access_token) {
                        Refusal::Reason(AuthErrorReason::TokenExpired, Close::AuthFailed)
                    } else {
                        error.into()
                    }
                })?;
            admit_user(gateway, user_token, resume).await
        }
    }
}

/// Verifies the token in Postgres, charges the agent and takes a slot.
async fn admit_agent(
    gateway: &Gateway,
    agent_token: AgentToken,
    resume: Option<String>,
    group: Option<String>,
) -> Result<AuthenticatedClient, Refusal> {
    let revoked = &gateway.agent_tokens.revoked;
    let agent = agent_token.check_live(&gateway.db, revoked).await?;
    gateway.agent_tokens.used.note(agent.token);
    let limiter = Limiter::detached(gateway.limits.clone());
    limiter.check(Limit::WsConnect, agent.id).await?;
    let principal = Principal::Agent(agent.id);
    // A group's position is its own.
    let resume = cursor(resume)?.filter(|_| group.is_none());
    let lease = slot(gateway, principal, "").await?;
    let shared = match group {
        Some(group) => Some(join(gateway, &agent, group, lease.id).await?),
        None => None,
    };
    Ok(AuthenticatedClient {
        principal,
        credential: Credential::Token(agent.token),
        verified: VerifiedCredential::agent(agent_token, gateway.db.clone(), revoked.clone()),
        reader: Reader::new(principal, ""),
        expires_at: None,
        resume,
        lease,
        shared,
    })
}

/// Verifies the session in Postgres, charges the user and takes a slot.
async fn admit_user(
    gateway: &Gateway,
    user_token: UserToken,
    resume: Option<String>,
) -> Result<AuthenticatedClient, Refusal> {
    let revoked = &gateway.access_tokens.revoked;
    let user = user_token.check_live(&gateway.db, revoked).await?;
    let limiter = Limiter::detached(gateway.limits.clone());
    limiter.check(Limit::WsConnect, user.id).await?;
    let principal = Principal::User(user.id);
    Ok(AuthenticatedClient {
        principal,
        credential: Credential::Session(user.session),
        reader: Reader::new(principal, &user.device_id),
        expires_at: Some(user_token.expires_at),
        verified: VerifiedCredential::user(user_token, gateway.db.clone(), revoked.clone()),
        resume: cursor(resume)?,
        lease: slot(gateway, principal, &user.device_id).await?,
        shared: None,
    })
}

async fn slot(gateway: &Gateway, principal: Principal, device: &str) -> Result<Lease, Refusal> {
    let lease = gateway
        .slots
        .take(principal, ConnectionKind::Websocket, device)
        .await;
    lease.ok_or(Refusal::Reason(
        AuthErrorReason::ConnectionLimit,
        Close::ConnectionLimit,
    ))
}

/// Takes a place in a consumer group.
async fn join(
    gateway: &Gateway,
    agent: &Agent,
    group: String,
    connection: ConnectionId,
) -> Result<Box<SharedSocket>, Refusal> {
    let member = Member {
        agent: agent.id,
        group,
        connection,
        token: agent.token,
        epoch: gateway.inbox.epoch().await?,
    };
    let asked_at = Instant::now();
    let acked = groups::join(&gateway.db, &member).await?;
    let acked = acked.ok_or(Refusal::Reason(
        AuthErrorReason::ConnectionLimit,
        Close::ConnectionLimit,
    ))?;
    let now = gateway.clock.now();
    Ok(Box::new(SharedSocket::new(member, acked, now, asked_at)))
}

fn cursor(resume: Option<String>) -> Result<Option<Cursor>, Refusal> {
    resume
        .map(|text| text.parse().map_err(|_| Refusal::Frame))
        .transpose()
}
