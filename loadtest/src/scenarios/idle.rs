//! `idle`: what a socket costs that is authenticated, leased and silent: resident memory, and the processor time of
//! connecting; beside a bare TCP connection that a task of the same runtime waits on.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio::{io::AsyncReadExt, net::TcpListener};

use crate::{
    Options, Result,
    cluster::{Cluster, Wire},
    cpu::{Watch, resident},
    crowd::{Crowd, Line},
    delivery::Faults,
    peers::SocketIo,
    plain::{Child, Plain, free_port},
    report::{Goal, Ratio, Report, say},
};

/// Connecting at once.
const AT_ONCE: usize = 64;
/// Until memory that is given back has been given back.
const SETTLE: Duration = Duration::from_secs(6);

/// What one side found.
#[derive(Serialize)]
struct Found {
    who: &'static str,
    sockets: usize,
    /// KiB of resident memory per socket.
    kib: f64,
    /// Connections per second.
    rate: f64,
    /// µs of the server's processor time per connection.
    cpu: f64,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let sockets = options.sockets_or(10_000);
    let plain = Plain::start(cluster, 2).await?;
    let mut found = vec![Box::pin(ours(&plain.cluster, sockets)).await?, tcp(sockets).await?];
    if !options.no_peers
        && let Some(peer) = SocketIo::start(cluster, &options.dir).await?
    {
        found.push(Box::pin(theirs(&peer, sockets.min(2_000))).await?);
    }
    let heading = ["", "sockets", "KiB each", "connects/s", "CPU µs each"].map(str::to_owned);
    let mut table = vec![heading.into()];
    table.extend(found.iter().map(|one| {
        let Found { who, sockets, kib, rate, cpu } = one;
        vec![
            (*who).to_owned(),
            sockets.to_string(),
            format!("{kib:.2}"),
            format!("{rate:.0}"),
            format!("{cpu:.0}"),
        ]
    }));
    let ratios = vec![Ratio {
        what: "KiB per socket / per bare TCP task",
        value: found[0].kib / found[1].kib,
        goal: Goal::AtMost(3.0, 1.6),
    }];
    let notes = vec![
        "Two nodes without TLS; memory is that of both, after the first 200 sockets had come and gone."
            .to_owned(),
    ];
    let details = json!({ "found": found });
    let checked = sockets as u64;
    Ok(Report {
        scenario: "idle",
        tables: vec![table],
        ratios,
        notes,
        details,
        faults: Faults::default(),
        checked,
    })
}

async fn ours(cluster: &Cluster, sockets: usize) -> Result<Found> {
    let crowd = Crowd::make(cluster, sockets, 1).await?;
    let connect = async |user: usize| -> Result<Line> {
        let mut line = crowd.connect(cluster.node(user), user, 0, None).await?;
        line.caught_up().await?;
        Ok(line)
    };
    let pids: Vec<u32> = cluster.nodes.iter().map(|node| node.pid).collect();
    let warm: Vec<Line> =
        stream::iter(0..200.min(sockets)).map(connect).buffered(AT_ONCE).try_collect().await?;
    drop(warm);
    tokio::time::sleep(SETTLE).await;
    let watch = Watch::of(cluster).await?;
    let (memory, used, began) = (resident(&pids)?, watch.now(), Instant::now());
    let lines: Vec<Line> = stream::iter(0..sockets).map(connect).buffered(AT_ONCE).try_collect().await?;
    let (rate, used) = (sockets as f64 / began.elapsed().as_secs_f64(), watch.now().since(&used));
    say(format!("idle: {} sockets are up", lines.len()));
    tokio::time::sleep(SETTLE).await;
    let kib = (resident(&pids)? - memory) / sockets as f64;
    drop(lines);
    let cpu = used.nodes.iter().sum::<f64>() * 1e6 / sockets as f64;
    Ok(Found { who: "blindpipe", sockets, kib, rate, cpu })
}

/// A task that waits with a buffer, per connection, in a process of its own: this program again.
async fn tcp(sockets: usize) -> Result<Found> {
    let port = free_port()?;
    let child = Child::ourselves(&["--bare-tcp", &port.to_string()])?;
    let connect = async |_| -> Result<Wire> { Ok(Box::new(dial(port).await?) as Wire) };
    let warm: Vec<Wire> =
        stream::iter(0..200.min(sockets)).map(connect).buffered(AT_ONCE).try_collect().await?;
    drop(warm);
    tokio::time::sleep(SETTLE).await;
    let pids = [child.id()];
    let (memory, began) = (resident(&pids)?, Instant::now());
    let used = Watch::alone(pids[0]).now();
    let wires: Vec<Wire> = stream::iter(0..sockets).map(connect).buffered(AT_ONCE).try_collect().await?;
    let rate = sockets as f64 / began.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let used = Watch::alone(pids[0]).now().since(&used);
    let kib = (resident(&pids)? - memory) / sockets as f64;
    drop(wires);
    Ok(Found { who: "bare TCP task", sockets, kib, rate, cpu: used.nodes[0] * 1e6 / sockets as f64 })
}

async fn dial(port: u16) -> Result<tokio::net::TcpStream> {
    let began = Instant::now();
    loop {
        match tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
            Ok(stream) => return Ok(stream),
            // It may just be starting.
            Err(_) if began.elapsed() < Duration::from_secs(5) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The other side of [`tcp`].
pub async fn bare_tcp(port: u16) -> Result<bool> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            // As large as the buffer of a socket of ours.
            let mut some = [0; 2048];
            while stream.read(&mut some).await.is_ok_and(|n| n > 0) {}
        });
    }
}

async fn theirs(peer: &SocketIo, sockets: usize) -> Result<Found> {
    let connect = async |n: usize| peer.connect(n).await;
    let pids = peer.pids();
    let warm: Vec<Line> =
        stream::iter(0..200.min(sockets)).map(connect).buffered(AT_ONCE).try_collect().await?;
    drop(warm);
    tokio::time::sleep(SETTLE).await;
    let watch = Watch::of_pids(pids.clone(), peer.cluster()).await?;
    let (memory, used, began) = (resident(&pids)?, watch.now(), Instant::now());
    let lines: Vec<Line> = stream::iter(0..sockets).map(connect).buffered(AT_ONCE).try_collect().await?;
    let (rate, used) = (sockets as f64 / began.elapsed().as_secs_f64(), watch.now().since(&used));
    tokio::time::sleep(SETTLE).await;
    let kib = (resident(&pids)? - memory) / sockets as f64;
    drop(lines);
    Ok(Found {
        who: "Socket.IO",
        sockets,
        kib,
        rate,
        cpu: used.nodes.iter().sum::<f64>() * 1e6 / sockets as f64,
    })
}
