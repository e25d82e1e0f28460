//! This crate beside axum's WebSockets: memory per idle socket, CPU per frame and per delivery.
//!
//! ```sh
//! ulimit -n 20000
//! cargo run --release --package websocket --example compare
//! ```
//!
//! Each measurement starts the server anew as a process of its own, whose memory and CPU time Linux
//! counts in `/proc`. Both servers upgrade with axum. Axum's socket has small buffers: 1 KiB to
//! read, none to write. Its limits cannot change after the upgrade, so it accepts 1 MB from the
//! start.

#![expect(clippy::disallowed_methods, reason = "its tasks end with the program")]

use std::{
    collections::HashMap,
    env,
    error::Error,
    fs,
    future::{poll_fn, ready},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{
        Request,
        ws::{Message, Utf8Bytes, WebSocket, WebSocketUpgrade},
    },
    http::{StatusCode, header},
    response::Response,
    routing::get,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use websocket::{Read, Socket};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The largest message.
const MAX_MESSAGE_BYTES: usize = 1_000_000;
/// The sockets of the memory's measurement.
const IDLE_SOCKETS: usize = 5_000;
/// The sockets that read frames, and the frames of each.
const READER_COUNT: usize = 50;
const FRAME_COUNT: usize = 20_000;
/// The sockets that get each body.
const LISTENERS: usize = 1_000;
/// Repetitions, of which the median counts.
const ROUND_COUNT: usize = 3;

/// The bodies that a listener's task waits for.
type Bodies = mpsc::UnboundedReceiver<Arc<str>>;

/// The listeners of a server.
#[derive(Clone, Default)]
struct Hub(Arc<Mutex<Vec<mpsc::UnboundedSender<Arc<str>>>>>);

impl Hub {
    fn subscribe(&self) -> Bodies {
        let (body, bodies) = mpsc::unbounded_channel();
        self.0.lock().expect("no panic").push(body);
        bodies
    }

    /// Reacts to a message: `fan <bytes>` delivers a body to every listener.
    fn react(&self, text: &str) {
        if let Some(bytes) = text.strip_prefix("fan ") {
            let body: Arc<str> = "x".repeat(bytes.parse().unwrap_or_default()).into();
            let listeners = self.0.lock().expect("no panic");
            for listener in listeners.iter() {
                listener.send(body.clone()).ok();
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    match env::args().nth(1).as_deref() {
        Some("serve") => serve(&env::args().nth(2).unwrap_or_default()).await,
        _ => compare().await,
    }
}

async fn serve(kind: &str) -> Result<()> {
    let hub = Hub::default();
    let handler = match kind {
        "ours" => get(move |request| ready(upgrade_ours(request, hub.clone()))),
        _ => get(move |upgrade| ready(upgrade_axum(upgrade, hub.clone()))),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    fs::write(
        env::args().nth(3).ok_or("no file for the port")?,
        listener.local_addr()?.port().to_string(),
    )?;
    Ok(axum::serve(listener, Router::new().fallback_service(handler)).await?)
}

fn upgrade_ours(mut request: Request, hub: Hub) -> Response {
    let key = request.headers()[header::SEC_WEBSOCKET_KEY].clone();
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrading.await {
            let socket = Socket::new(TokioIo::new(upgraded), MAX_MESSAGE_BYTES);
            attend_ours(socket, &hub, hub.subscribe()).await;
        }
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, "websocket")
        .header(
            header::SEC_WEBSOCKET_ACCEPT,
            derive_accept_key(key.as_bytes()),
        )
        .body(Body::empty())
        .expect("a response")
}

async fn attend_ours(
    mut socket: Socket<TokioIo<hyper::upgrade::Upgraded>>,
    hub: &Hub,
    mut bodies: Bodies,
) {
    loop {
        tokio::select! {
            read = poll_fn(|cx| socket.poll_read(cx)) => match read {
                Ok(Read::Message(websocket::Message::Text(text))) => hub.react(&text),
                Ok(Read::Message(_) | Read::Part) => {}
                Ok(Read::End) | Err(_) => return,
            },
            body = bodies.recv() => {
                let Some(body) = body else { return };
                socket.queue_shared("", body, "");
                while let Ok(body) = bodies.try_recv() {
                    socket.queue_shared("", body, "");
                }
                if poll_fn(|cx| socket.poll_flush(cx)).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn upgrade_axum(upgrade: WebSocketUpgrade, hub: Hub) -> Response {
    let upgrade = upgrade
        .read_buffer_size(1024)
        .write_buffer_size(0)
        .max_message_size(MAX_MESSAGE_BYTES);
    upgrade.on_upgrade(async move |socket| {
        let bodies = hub.subscribe();
        attend_axum(socket, &hub, bodies).await;
    })
}

/// Serves axum's socket. Its message shares bytes too, but of a type of its own; the text is
/// converted once per listener, since the hub knows no socket.
async fn attend_axum(mut socket: WebSocket, hub: &Hub, mut bodies: Bodies) {
    loop {
        tokio::select! {
            message = socket.recv() => match message {
                Some(Ok(Message::Text(text))) => hub.react(&text),
                Some(Ok(_)) => {}
                _ => return,
            },
            body = bodies.recv() => {
                let Some(body) = body else { return };
                if socket.send(Message::Text(shared(body))).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Axum's text of a shared body, without a copy.
fn shared(body: Arc<str>) -> Utf8Bytes {
    struct Body(Arc<str>);
    impl AsRef<[u8]> for Body {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }
    let bytes = axum::body::Bytes::from_owner(Body(body));
    Utf8Bytes::try_from(bytes).expect("UTF-8")
}

/// A server in a process of its own.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Server {
    async fn start(kind: &str) -> Result<Self> {
        let file = env::temp_dir().join(format!("websocket-compare-{}", std::process::id()));
        fs::remove_file(&file).ok();
        let process = Command::new(env::current_exe()?)
            .args(["serve", kind])
            .arg(&file)
            .stdin(Stdio::null())
            .spawn()?;
        for _ in 0..500 {
            let port = fs::read_to_string(&file).ok();
            if let Some(port) = port.and_then(|port| port.parse().ok()) {
                return Ok(Server { process, port });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("the server did not start".into())
    }

    /// An upgraded connection.
    async fn connect(&self) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let request = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n\
                       upgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await?);
        }
        if answer.starts_with(b"HTTP/1.1 101") {
            Ok(stream)
        } else {
            Err(String::from_utf8_lossy(&answer).into_owned().into())
        }
    }

    async fn connect_many(&self, n: usize) -> Result<Vec<TcpStream>> {
        let mut all = Vec::with_capacity(n);
        for _ in 0..n {
            all.push(self.connect().await?);
        }
        // The last upgrades are still under way.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(all)
    }

    /// Memory that the process alone holds, in bytes.
    fn memory(&self) -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id()))?;
        let kilobytes = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name));
            let word = line.and_then(|line| line.split_whitespace().nth(1));
            word.and_then(|word| word.parse().ok()).unwrap_or_default()
        };
        Ok((kilobytes("Private_Dirty:") + kilobytes("Private_Clean:")) * 1024.0)
    }

    /// CPU time of all threads of the process, in nanoseconds.
    fn cpu(&self) -> Result<f64> {
        let mut sum = 0.0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            // Its first field is the time on a CPU, in nanoseconds.
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            let word = text.split_whitespace().next().unwrap_or_default();
            sum += word.parse::<f64>()?;
        }
        Ok(sum)
    }

    /// Waits until the server has had nothing to do for a while, and returns its CPU time.
    async fn settled(&self) -> Result<f64> {
        let mut before = self.cpu()?;
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = self.cpu()?;
            if now - before < 2_000_000.0 {
                return Ok(now);
            }
            before = now;
        }
    }
}

/// A client's text frame with a mask.
fn masked(text: &[u8]) -> Vec<u8> {
    let mask = [0x5a, 0x01, 0xff, 0x13];
    let mut frame = vec![0x81];
    match u8::try_from(text.len()) {
        Ok(length) if length < 126 => frame.push(0x80 | length),
        _ => {
            let length = u16::try_from(text.len()).expect("a small frame");
            frame.push(0x80 | 126);
            frame.extend(length.to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(
        text.iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    frame
}

/// Bytes per idle socket.
async fn idle(kind: &str) -> Result<f64> {
    let server = Server::start(kind).await?;
    // The first sockets pay for what the process needs once.
    let _warm = server.connect_many(200).await?;
    let before = server.memory()?;
    let _sockets = server.connect_many(IDLE_SOCKETS).await?;
    Ok((server.memory()? - before) / IDLE_SOCKETS as f64)
}

/// Nanoseconds of CPU per received frame of `bytes`. Frames arrive singly or `batch` at a time.
async fn reads(kind: &str, bytes: usize, batch: usize) -> Result<f64> {
    let server = Server::start(kind).await?;
    let sockets = server.connect_many(READER_COUNT).await?;
    let before = server.settled().await?;
    let frame = masked(&vec![b'a'; bytes]).repeat(batch);
    let writes = FRAME_COUNT / batch;
    let mut writers = Vec::new();
    for mut socket in sockets {
        let frame = frame.clone();
        writers.push(tokio::spawn(async move {
            for _ in 0..writes {
                socket.write_all(&frame).await?;
                tokio::task::yield_now().await;
            }
            Ok::<_, std::io::Error>(socket)
        }));
    }
    let mut sockets = Vec::new();
    for writer in writers {
        sockets.push(writer.await??);
    }
    let spent = server.settled().await? - before;
    Ok(spent / (READER_COUNT * writes * batch) as f64)
}

/// Nanoseconds of CPU per delivery of a body of `bytes` that all listeners share.
async fn fan_out(kind: &str, bytes: usize, deliveries: usize) -> Result<f64> {
    let server = Server::start(kind).await?;
    let sockets = server.connect_many(LISTENERS).await?;
    // The speaker is a listener too, so it must read.
    let (mut heard, mut speaker) = server.connect().await?.into_split();
    let hearing =
        tokio::spawn(async move { tokio::io::copy(&mut heard, &mut tokio::io::sink()).await });
    let before = server.settled().await?;
    let head = if bytes < 126 { 2 } else { 4 };
    let mut readers = Vec::new();
    for mut socket in sockets {
        readers.push(tokio::spawn(async move {
            let mut left = deliveries * (head + bytes);
            let mut buffer = vec![0; 16 * 1024];
            while left > 0 {
                left -= socket.read(&mut buffer).await?.min(left);
            }
            Ok::<_, std::io::Error>(socket)
        }));
    }
    let frame = masked(format!("fan {bytes}").as_bytes());
    for _ in 0..deliveries {
        speaker.write_all(&frame).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut sockets = Vec::new();
    for reader in readers {
        sockets.push(reader.await??);
    }
    let spent = server.settled().await? - before;
    hearing.abort();
    Ok(spent / (LISTENERS * deliveries) as f64)
}

async fn compare() -> Result<()> {
    let mut figures: HashMap<(usize, &str), Vec<f64>> = HashMap::new();
    for _ in 0..ROUND_COUNT {
        for kind in ["ours", "axum"] {
            let row = [
                idle(kind).await?,
                reads(kind, 20, 1).await?,
                reads(kind, 1024, 1).await?,
                reads(kind, 20, 50).await?,
                fan_out(kind, 100, 200).await?,
                fan_out(kind, 1024, 200).await?,
                fan_out(kind, 65_000, 10).await?,
            ];
            for (n, figure) in row.into_iter().enumerate() {
                figures.entry((n, kind)).or_default().push(figure);
            }
        }
    }
    let names = [
        "memory of an idle socket, bytes",
        "CPU of a frame of 20 bytes, written singly, ns",
        "CPU of a frame of 1 KiB, written singly, ns",
        "CPU of a frame of 20 bytes, 50 in a write, ns",
        "CPU of a delivery of 100 bytes to each of 1,000 sockets, ns",
        "CPU of a delivery of 1 KiB to each of 1,000 sockets, ns",
        "CPU of a delivery of 65 KB to each of 1,000 sockets, ns",
    ];
    let mut table = String::from("| measure | this crate | axum |\n|---|---|---|\n");
    for (n, name) in names.into_iter().enumerate() {
        let mut median = |kind| {
            let row = figures.entry((n, kind)).or_default();
            row.sort_by(f64::total_cmp);
            row.get(row.len() / 2).copied().unwrap_or_default()
        };
        table += &format!(
            "| {name} | {:.0} | {:.0} |\n",
            median("ours"),
            median("axum")
        );
    }
    std::io::Write::write_all(&mut std::io::stdout(), table.as_bytes())?;
    Ok(())
}
