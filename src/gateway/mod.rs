//! `GET /ws`: the socket of people and agents.
//!
//! This module owns the handshake (upgrade, `auth` within 5 s), the sessions of this node and their
//! end. A session is a cursor over an inbox with a mailbox of hints; see [`session`]. A client that
//! does not read is closed with 4410: its mailbox and its writes are bounded, and [`socket`]
//! measures its pace.

mod authenticate;
pub mod close;
mod commands;
mod ephemeral_frames;
pub(crate) mod frames;
pub mod handshake;
pub(crate) mod long_poll;
mod rate;
mod reorder_buffer;
mod session;
pub mod socket;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    extract::{Request, State},
    response::Response,
};
use hyper::upgrade::OnUpgrade;
use tokio_util::task::TaskTracker;

use crate::{
    auth::{agent::AgentTokens, jwt::AccessTokens},
    clock::Clock,
    db::Db,
    delivery::Hub,
    error::{Error, Result},
    features::{
        agents::ReachabilityTracker, messages::MessageWriter, stops::Stops, streams::Streams,
        typing::Typing,
    },
    http::{
        client::{ClientIp, IngressPolicy},
        connections::log_end,
    },
    inbox::{Acks, Inbox},
    limits::{
        Limiter, Limits,
        buffers::ByteBudget,
        slots::Slots,
        table::Limit,
        unauthenticated::{UnauthenticatedConnection, UnauthenticatedConnections},
    },
    random::Random,
    supervisor,
    work::UnitOfWork,
};

/// The handles that sessions work with.
pub struct Gateway {
    pub clock: Clock,
    pub random: Random,
    pub db: Db,
    pub inbox: Inbox,
    pub acks: Acks,
    pub reachability: ReachabilityTracker,
    pub hub: Hub,
    pub message_writer: MessageWriter,
    pub work: UnitOfWork,
    pub typing: Typing,
    pub streams: Streams,
    pub stops: Stops,
    pub limits: Limits,
    /// The byte budget of the node.
    pub buffers: ByteBudget,
    pub slots: Slots,
    pub unauthenticated: UnauthenticatedConnections,
    pub access_tokens: AccessTokens,
    pub agent_tokens: AgentTokens,
    /// The tasks of sessions, which outlive their requests. A drain waits for them.
    pub tasks: TaskTracker,
    /// Open sockets, authenticated or not.
    pub sockets: AtomicUsize,
    /// Most open sockets.
    pub max_sockets: usize,
}

/// `GET /ws`: upgrades, then waits 5 s for the `auth` frame.
///
/// Caller: anyone; a foreign `Origin` is refused. Limit: `ws_connect_ip`, 60/min per IP. Errors:
/// `ORIGIN_NOT_ALLOWED`; `SERVICE_UNAVAILABLE` when the node is full, or when 100 sockets of the
/// address have not authenticated yet.
pub async fn upgrade(
    State(gateway): State<Arc<Gateway>>,
    State(ingress): State<IngressPolicy>,
    ip: ClientIp,
    limiter: Limiter,
    mut request: Request,
) -> Result<Response> {
    ingress.check_origin(request.headers())?;
    let response = handshake::accept(request.version(), request.headers())?;
    limiter.check(Limit::WsConnectIp, ip).await?;
    let unauthenticated = gateway.unauthenticated.enter(ip);
    let unauthenticated = unauthenticated.ok_or_else(Error::full)?;
    let permit = SocketPermit::take(&gateway)?;
    let upgrading = hyper::upgrade::on(&mut request);
    let tasks = gateway.tasks.clone();
    // The task is tracked, so that a drain waits for it. It is spawned, so that the connection's
    // own task can be freed.
    supervisor::spawn_once(&tasks, "gateway.sockets", async move {
        let served = serve(&gateway, upgrading, unauthenticated);
        let remedy = "the socket is cut and its client reconnects";
        if supervisor::contain("gateway.socket", remedy, served)
            .await
            .is_none()
        {
            log_end("panicked", None);
        }
        drop(permit);
    });
    Ok(response)
}

async fn serve(
    gateway: &Gateway,
    upgrading: OnUpgrade,
    unauthenticated: UnauthenticatedConnection,
) {
    let upgraded = match upgrading.await {
        Ok(upgraded) => upgraded,
        // The client went before it had the answer.
        Err(error) => return log_end("upgrade_failed", Some(&error)),
    };
    let mut socket = socket::Socket::new(upgraded);
    let why = session::run(gateway, &mut socket, unauthenticated).await;
    Box::pin(socket.end(why)).await;
    log_end(why.word(), None);
}

/// A count among the node's open sockets, released on drop.
struct SocketPermit(Arc<Gateway>);

impl SocketPermit {
    fn take(gateway: &Arc<Gateway>) -> Result<Self> {
        if gateway.sockets.fetch_add(1, Ordering::Relaxed) < gateway.max_sockets {
            return Ok(SocketPermit(gateway.clone()));
        }
        gateway.sockets.fetch_sub(1, Ordering::Relaxed);
        Err(Error::full())
    }
}

impl Drop for SocketPermit {
    fn drop(&mut self) {
        self.0.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod simulation;
