//! `idle`: the cost of a socket that is authenticated, leased and silent: anonymous memory, and the
//! processor time of connecting. A bare TCP connection and a bare axum WebSocket, each with a
//! waiting task, are the comparison.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::{
    Options, Result, baseline,
    cluster::{Cluster, Wire},
    cpu::{Watch, anonymous},
    crowd::{Crowd, Line},
    delivery::Faults,
    peers::{self, Peer},
    plain::{Plain, dial, free_port},
    report::{Goal, Ratio, Report, say},
};

/// The number of concurrent connection attempts.
const AT_ONCE: usize = 64;
/// Sockets that come and go before anything is measured, so that what the first ones leave behind
/// does not count.
const WARMING_SOCKETS: usize = 1_000;
/// The wait until freed memory has returned to the system.
const SETTLE: Duration = Duration::from_secs(6);
/// The wait until the last connection has been accepted. The kernel completes its part before the
/// server does.
const ACCEPTED: Duration = Duration::from_millis(100);

/// The findings of one server.
#[derive(Serialize)]
struct Found {
    who: &'static str,
    sockets: usize,
    /// KiB of anonymous resident memory per socket: the slope from half of the sockets to all.
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
    let (ours, tcp, axum) = (
        Box::pin(ours(&plain.cluster, sockets)).await?,
        tcp(sockets).await?,
        axum(sockets).await?,
    );
    let mut peers = peers::Found::new();
    peers::measure(cluster, options, &mut peers, async |peer| {
        theirs(peer, sockets.min(2_000)).await
    })
    .await;
    let ratios = vec![
        Ratio {
            what: "KiB per socket / per bare TCP task",
            value: ours.kib / tcp.kib,
            goal: Goal::AtMost(3.0, 1.6),
        },
        Ratio {
            what: "CPU per connect, with auth and ready / per bare axum WebSocket's",
            value: ours.cpu / axum.cpu,
            goal: Goal::AtMost(3.0, 1.7),
        },
    ];
    let mut notes = vec![
        "Two nodes without TLS; memory is that of both, after the first 200 sockets had come and gone."
            .to_owned(),
    ];
    notes.extend(peers::remark(&peers));
    let found: Vec<Found> = [ours, tcp, axum]
        .into_iter()
        .chain(peers.into_values().flatten())
        .collect();
    let heading = ["", "sockets", "KiB each", "connects/s", "CPU µs each"].map(str::to_owned);
    let mut table = vec![heading.into()];
    table.extend(found.iter().map(|one| {
        let Found {
            who,
            sockets,
            kib,
            rate,
            cpu,
        } = one;
        vec![
            (*who).to_owned(),
            sockets.to_string(),
            format!("{kib:.2}"),
            format!("{rate:.0}"),
            format!("{cpu:.0}"),
        ]
    }));
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
        p99_ms: None,
    })
}

async fn ours(cluster: &Cluster, sockets: usize) -> Result<Found> {
    let crowd = Crowd::make(cluster, sockets, 1).await?;
    let pids = cluster.nodes.iter().map(|node| node.pid).collect();
    measure("blindpipe", pids, sockets, async |user| {
        let mut line = crowd.connect(cluster.node(user), user, 0, None).await?;
        line.caught_up().await?;
        Ok(line)
    })
    .await
}

/// Measures bare TCP connections, each with a task that waits with a buffer.
async fn tcp(sockets: usize) -> Result<Found> {
    let port = free_port()?;
    let child = baseline::Kind::Tcp.start(port, "")?;
    measure("bare TCP task", vec![child.id()], sockets, async |_| {
        dial(port).await
    })
    .await
}

/// Measures WebSockets on which an axum handler waits.
async fn axum(sockets: usize) -> Result<Found> {
    let port = free_port()?;
    let child = baseline::Kind::Axum.start(port, "")?;
    let url = format!("ws://127.0.0.1:{port}/ws");
    measure(
        "bare axum WebSocket",
        vec![child.id()],
        sockets,
        async |_| {
            Line::over(
                url.as_str().into_client_request()?,
                Box::new(dial(port).await?) as Wire,
            )
            .await
        },
    )
    .await
}

async fn theirs(peer: &Peer, sockets: usize) -> Result<Found> {
    measure(peer.kind.name(), peer.pids(), sockets, async |n| {
        peer.connect(n).await
    })
    .await
}

/// Measures the cost of many connections for these processes.
async fn measure<L>(
    who: &'static str,
    pids: Vec<u32>,
    sockets: usize,
    connect: impl AsyncFn(usize) -> Result<L>,
) -> Result<Found> {
    let open = async |some: Range<usize>| -> Result<Vec<L>> {
        stream::iter(some)
            .map(async |n| connect(n).await)
            .buffered(AT_ONCE)
            .try_collect()
            .await
    };
    drop(open(0..WARMING_SOCKETS.min(sockets)).await?);
    tokio::time::sleep(SETTLE).await;
    let watch = Watch::alone(pids.clone());
    let half = sockets / 2;
    let (used, began) = (watch.now(), Instant::now());
    let first = open(0..half).await?;
    let paused = Instant::now();
    tokio::time::sleep(SETTLE).await;
    let (memory, pause) = (anonymous(&pids)?, paused.elapsed());
    let second = open(half..sockets).await?;
    let rate = sockets as f64 / (began.elapsed() - pause).as_secs_f64();
    tokio::time::sleep(ACCEPTED).await;
    let used = watch.now().since(&used);
    say(format!("idle: {sockets} are up ({who})"));
    tokio::time::sleep(SETTLE).await;
    let kib = (anonymous(&pids)? - memory) / (sockets - half) as f64;
    drop((first, second));
    Ok(Found {
        who,
        sockets,
        kib,
        rate,
        cpu: used.nodes.iter().sum::<f64>() * 1e6 / sockets as f64,
    })
}
