//! An echo over the handshake, bounds and codec of `/ws`, on `127.0.0.1:<port>`: conformance suites
//! need a server that repeats their messages (`make autobahn`).

use std::{env, error::Error};

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
};
use blindpipe::{
    error::Result,
    gateway::{
        close::SessionEnd,
        handshake,
        socket::{Incoming, Socket},
    },
    http::{
        connections::Connections,
        listener::{self, ConnectionServer},
        proxy_protocol::ProxyProtocol,
    },
    limits::buffers::{ByteBudget, Owner},
};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = env::args().nth(1).ok_or("usage: echo <port>")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let tasks = TaskTracker::new();
    let router = Router::new().fallback(upgrade).with_state(tasks.clone());
    let server = ConnectionServer {
        tls: None,
        router,
        connections: Connections::up_to(10_000),
        proxy_protocol: ProxyProtocol::default(),
        buffers: ByteBudget::new(1 << 30),
        idle_timeout: std::time::Duration::from_secs(75),
        tasks: tasks.clone(),
        draining: CancellationToken::new(),
        stop: CancellationToken::new(),
    };
    listener::serve(listener, server, &tasks);
    tasks.close();
    tasks.wait().await;
    Ok(())
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
    socket.admit(
        ByteBudget::new(1 << 30),
        Owner::Address(std::net::Ipv4Addr::LOCALHOST.into()),
    );
    let end = loop {
        let sent = match socket.receive().await {
            Incoming::Text(text) => socket.say(text).await,
            Incoming::Binary(bytes) => socket.say_bytes(&bytes).await,
            Incoming::Alive => Ok(()),
            Incoming::Gone => break SessionEnd::PeerGone,
            Incoming::Fault(close) => break close.into(),
        };
        if let Err(close) = sent {
            break close.into();
        }
    };
    socket.end(end).await;
}
