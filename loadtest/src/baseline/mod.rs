//! Servers that do only the one thing that is measured, each in a process of its own: this program
//! again.

mod floor;
pub mod poster;

use std::path::PathBuf;

use axum::{
    Router,
    body::Body,
    extract::{Path, State, ws::WebSocketUpgrade},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use clap::ValueEnum;
use tokio::{io::AsyncReadExt, net::TcpListener, runtime::Runtime};
use tokio_util::io::ReaderStream;

use crate::{Result, plain::Child};

/// A baseline server, as an argument of this program.
#[derive(clap::Args)]
pub struct Baseline {
    /// Be a server to measure others by
    #[arg(long, value_enum, hide = true)]
    be: Option<Kind>,
    /// Where it listens
    #[arg(long, default_value_t = 0, hide = true)]
    port: u16,
    /// Loops of the poster
    #[arg(long, default_value_t = 1, hide = true)]
    lanes: usize,
    /// The Redis of the floor
    #[arg(long, default_value = "", hide = true)]
    redis: String,
    /// The folder of the files
    #[arg(long, default_value = ".", hide = true)]
    folder: PathBuf,
}

/// The properties of such a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Says to every WebSocket on any node what one of them said
    Floor,
    /// Waits on connections
    Tcp,
    /// Waits on WebSockets
    Axum,
    /// Answers the files of a folder
    Files,
    /// Posts to a port of this machine, again and again
    Poster,
}

impl Kind {
    /// Starts it.
    pub fn start(self, port: u16, redis: &str) -> Result<Child> {
        let name = self
            .to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default();
        Child::ourselves(&["--be", &name, "--port", &port.to_string(), "--redis", redis])
    }

    /// Starts the server of a folder's files.
    pub fn start_files(port: u16, folder: &std::path::Path) -> Result<Child> {
        let (port, folder) = (port.to_string(), folder.to_string_lossy());
        Child::ourselves(&["--be", "files", "--port", &port, "--folder", &folder])
    }

    /// Starts loops of bare POSTs to a port.
    pub fn post_to(port: u16, lanes: usize) -> Result<Child> {
        let (port, lanes) = (port.to_string(), lanes.to_string());
        Child::ourselves(&["--be", "poster", "--port", &port, "--lanes", &lanes])
    }
}

impl Baseline {
    /// Whether this process is to be one.
    pub fn is_wanted(&self) -> bool {
        self.be.is_some()
    }

    /// Servers have the threads that a node has, but for the bare connections, of which nothing
    /// costs less than one.
    pub fn runtime(&self) -> std::io::Result<Runtime> {
        match self.be {
            None | Some(Kind::Tcp) => tokio::runtime::Builder::new_current_thread(),
            Some(Kind::Floor | Kind::Axum | Kind::Files | Kind::Poster) => {
                tokio::runtime::Builder::new_multi_thread()
            }
        }
        .enable_all()
        .build()
    }

    /// Serves until it is killed.
    pub async fn serve(&self) -> Result<()> {
        if self.be == Some(Kind::Poster) {
            return poster::post(self.port, self.lanes).await;
        }
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await?;
        match self.be {
            Some(Kind::Floor) => floor::serve(listener, &self.redis).await,
            Some(Kind::Tcp) => tcp(listener).await,
            Some(Kind::Axum) => axum(listener).await,
            Some(Kind::Files) => files(listener, self.folder.clone()).await,
            Some(Kind::Poster) | None => Ok(()),
        }
    }
}

async fn tcp(listener: TcpListener) -> Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            // As large as the buffer of a socket of ours.
            let mut some = [0; 2048];
            while stream.read(&mut some).await.is_ok_and(|n| n > 0) {}
        });
    }
}

/// The buffers are made small, which is one line; with those that it has by default a socket takes
/// fifty times as much.
async fn axum(listener: TcpListener) -> Result<()> {
    let wait = async |upgrade: WebSocketUpgrade| {
        let upgrade = upgrade.read_buffer_size(1024).write_buffer_size(0);
        upgrade.on_upgrade(
            async |mut socket| while socket.recv().await.is_some_and(|heard| heard.is_ok()) {},
        )
    };
    Ok(axum::serve(listener, Router::new().route("/ws", any(wait))).await?)
}

/// A stream of a file, in chunks as large as a node's.
async fn files(listener: TcpListener, folder: PathBuf) -> Result<()> {
    let read = async |State(folder): State<PathBuf>, Path(name): Path<String>| -> Response {
        let Ok(file) = tokio::fs::File::open(folder.join(name)).await else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let length = file.metadata().await.map_or(0, |data| data.len());
        let body = Body::from_stream(ReaderStream::with_capacity(file, 64 * 1024));
        ([(header::CONTENT_LENGTH, length)], body).into_response()
    };
    let router = Router::new().route("/{name}", get(read)).with_state(folder);
    Ok(axum::serve(listener, router).await?)
}
