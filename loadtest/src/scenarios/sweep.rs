//! `sweep`: what idle sockets ask of Postgres and Redis, and what a send to a group asks of Redis.
//! The sweep's cost must not be the number of sockets, and a message must go to the nodes concerned
//! alone.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::NoTls;

use crate::{
    Options, Result,
    cluster::Cluster,
    crowd::Crowd,
    delivery::Faults,
    plain::Plain,
    redis,
    report::{Goal, Ratio, Report, say},
};

/// The members of the group, half of them on each node.
const MEMBERS: usize = 50;
/// The sends to the group.
const SENDS: u32 = 200;
/// The pause between two sends, which keeps them out of each other's batches.
const SEND_PAUSE: Duration = Duration::from_millis(20);
/// The wait until connecting has left no trace. Postgres reports its counts a second late.
const SETTLE: Duration = Duration::from_secs(12);
/// A node looks at each of its subscriptions once in this time.
const CYCLE: Duration = Duration::from_secs(60);
/// Look-ups per socket and second of a sweep that looks at everything each two seconds: the inbox,
/// and the credential in two tables.
const EVERYTHING: f64 = 1.5;

/// The counts of the servers.
#[derive(Clone, Copy, Default, Serialize)]
struct Counts {
    /// Index look-ups in `inbox`, `session`, `agent_token` and `reconcile_log`.
    lookups: f64,
    /// Commands that Redis processed.
    commands: f64,
    publishes: f64,
    scripts: f64,
    /// Bytes that Redis sent.
    bytes: f64,
}

impl Counts {
    async fn read(cluster: &Cluster) -> Result<Self> {
        let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
        tokio::spawn(link);
        let lookups: i64 = client
            .query_one(
                "select sum(idx_scan)::int8 from pg_stat_user_tables
                 where relname in ('inbox', 'session', 'agent_token', 'reconcile_log')",
                &[],
            )
            .await?
            .get(0);
        let info = info(&cluster.redis_url).await?;
        let value = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            let digits = line.and_then(|rest| rest.split(',').next());
            digits
                .and_then(|digits| digits.trim().parse().ok())
                .unwrap_or(0.0)
        };
        Ok(Counts {
            lookups: lookups as f64,
            commands: value("total_commands_processed:"),
            publishes: value("cmdstat_publish:calls="),
            scripts: value("cmdstat_evalsha:calls="),
            bytes: value("total_net_output_bytes:"),
        })
    }

    /// The counts since `before`, divided by `n`.
    fn since(self, before: Counts, n: f64) -> Counts {
        Counts {
            lookups: (self.lookups - before.lookups) / n,
            commands: (self.commands - before.commands) / n,
            publishes: (self.publishes - before.publishes) / n,
            scripts: (self.scripts - before.scripts) / n,
            bytes: (self.bytes - before.bytes) / n,
        }
    }

    fn row(&self, what: &str) -> Vec<String> {
        let numbers = [
            self.lookups,
            self.commands,
            self.publishes,
            self.scripts,
            self.bytes,
        ];
        let mut row = vec![what.to_owned()];
        row.extend(numbers.map(|number| format!("{number:.4}")));
        row
    }
}

/// The statistics of Redis.
async fn info(url: &str) -> Result<String> {
    let mut stream = redis::connect(url).await?;
    stream.write_all(b"INFO everything\r\n").await?;
    let mut text = Vec::new();
    let mut part = vec![0; 16 * 1024];
    loop {
        let n = stream.read(&mut part).await?;
        text.extend_from_slice(&part[..n]);
        let head = text.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let length = std::str::from_utf8(&text[..head])?.trim();
        let length: usize = length.trim_start_matches('$').parse().unwrap_or(usize::MAX);
        if n == 0 || text.len() > head.saturating_add(length) {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
    }
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let sockets = options.sockets_or(1_000).max(MEMBERS);
    let plain = Plain::start(cluster, 2).await?;
    let crowd = Crowd::make(cluster, sockets, 1).await?;
    let mut lines = Vec::with_capacity(sockets);
    for user in 0..sockets {
        let mut line = crowd
            .connect(plain.cluster.node(user), user, 0, None)
            .await?;
        line.caught_up().await?;
        // Somebody must read, or the sockets would end as slow ones.
        lines.push(tokio::spawn(
            async move { while line.hear().await.is_ok() {} },
        ));
    }
    say(format!("sweep: {sockets} sockets are up, and silent"));
    tokio::time::sleep(SETTLE).await;
    let before = Counts::read(cluster).await?;
    tokio::time::sleep(CYCLE).await;
    let idle = Counts::read(cluster)
        .await?
        .since(before, CYCLE.as_secs_f64());

    let conversation = crowd.group(0..MEMBERS).await?;
    let mut sender = crowd
        .sender(plain.cluster.node(0), 0, &conversation, 200)
        .await?;
    sender.send().await?;
    let (before, started) = (Counts::read(cluster).await?, std::time::Instant::now());
    for _ in 0..SENDS {
        sender.send().await?;
        tokio::time::sleep(SEND_PAUSE).await;
    }
    let took = started.elapsed().as_secs_f64();
    let mut sends = Counts::read(cluster).await?.since(before, f64::from(SENDS));
    // The silent sockets' own requests meanwhile do not belong to the sends.
    let per_send = took / f64::from(SENDS);
    sends.commands -= idle.commands * per_send;
    sends.publishes -= idle.publishes * per_send;
    sends.scripts -= idle.scripts * per_send;
    sends.bytes -= idle.bytes * per_send;
    lines.iter().for_each(tokio::task::JoinHandle::abort);

    let per_socket = idle.since(Counts::default(), sockets as f64);
    let heading = [
        "",
        "look-ups",
        "Redis commands",
        "PUBLISH",
        "EVALSHA",
        "bytes from Redis",
    ];
    let table = vec![
        heading.map(str::to_owned).into(),
        idle.row("per second, idle"),
        per_socket.row("per socket and second, idle"),
        sends.row("per send to the group"),
    ];
    let ratios = vec![Ratio {
        what: "look-ups per socket and second / of a sweep over everything each 2 s",
        value: per_socket.lookups / EVERYTHING,
        goal: Goal::AtMost(1.0 / 30.0, 1.0 / 45.0),
    }];
    let notes = vec![format!(
        "{sockets} silent sockets on two nodes for a minute; then {SENDS} sends to {MEMBERS} of them. \
         A send's limits and session are among its scripts and look-ups."
    )];
    Ok(Report {
        scenario: "sweep",
        tables: vec![table],
        ratios,
        notes,
        details: json!({ "idle": idle, "per_socket": per_socket, "sends": sends }),
        faults: Faults::default(),
        checked: u64::from(SENDS),
    })
}
