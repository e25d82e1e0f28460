//! An echo over the gateway's own handshake, bounds and codec: what conformance suites talk to, since `/ws` says back
//! nothing that it is told. No node serves it; `blindpipe dev` does.

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    handshake,
    socket::{Heard, Socket},
};
use crate::{error::Result, http::listener};

/// Serves it on every path until `stop`.
pub async fn serve(listener: TcpListener, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let router = Router::new().fallback(upgrade).with_state(tasks.clone());
    listener::serve(listener, None, router, tasks, stop).await;
}

async fn upgrade(State(tasks): State<TaskTracker>, mut request: Request) -> Result<Response> {
    let response = handshake::accept(request.version(), request.headers())?;
    let upgrading = hyper::upgrade::on(&mut request);
    tasks.spawn(async move {
        if let Ok(upgraded) = upgrading.await {
            echo(Socket::new(upgraded)).await;
        }
    });
    Ok(response)
}

async fn echo(mut socket: Socket) {
    socket.let_in();
    let why = loop {
        let said = match socket.hear().await {
            Heard::Text(text) => socket.say(text).await,
            Heard::Binary(bytes) => socket.say_bytes(&bytes).await,
            Heard::Alive => Ok(()),
            Heard::Gone => break None,
            Heard::Fault(why) => break Some(why),
        };
        if let Err(why) = said {
            break Some(why);
        }
    };
    socket.end(why).await;
}
