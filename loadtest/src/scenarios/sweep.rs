//! `sweep`: the calls of idle sockets to Postgres and Redis, with Redis and without, and the calls
//! of a send to a group. The sweep's cost must not be the number of sockets, and a message must go
//! to the nodes concerned alone.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
};
use tokio_postgres::NoTls;

use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{Used, Watch},
    crowd::Crowd,
    delivery::Faults,
    passage::Passage,
    plain::Plain,
    redis,
    report::{Goal, Ratio, Report, say},
};

/// The sends to the group.
const SENDS: u32 = 200;
/// The pause between two sends, which keeps them out of each other's batches.
const SEND_PAUSE: Duration = Duration::from_millis(20);
/// The wait until connecting has left no trace. Postgres reports its counts a second late.
const SETTLE: Duration = Duration::from_secs(12);
/// The wait until the sends have left no trace.
const SEND_SETTLE: Duration = Duration::from_secs(2);
/// A node looks at each of its subscriptions once in this time.
const CYCLE: Duration = Duration::from_secs(60);
/// The number of concurrent connection attempts.
const AT_ONCE: usize = 32;
/// Look-ups per socket and second of a sweep that looks at everything each two seconds: the inbox,
/// and the credential in two tables.
const EVERYTHING: f64 = 1.5;

/// The counts of the servers.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct Counts {
    /// Rows that the nodes' sweeps asked for: heads of inboxes and credentials.
    pub(super) lookups: f64,
    /// Index scans of `inbox`, `session`, `agent_token` and `reconcile_log`.
    pub(super) scans: f64,
    /// Transactions of Postgres. A statement outside of a transaction is one.
    pub(super) transactions: f64,
    /// Commands that Redis processed.
    pub(super) commands: f64,
    pub(super) publishes: f64,
    pub(super) scripts: f64,
    /// Bytes that Redis sent.
    pub(super) bytes: f64,
}

impl Counts {
    pub(super) async fn read(cluster: &Cluster) -> Result<Self> {
        let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
        tokio::spawn(link);
        let row = client
            .query_one(
                "select (select sum(idx_scan)::int8 from pg_stat_user_tables
                         where relname in ('inbox', 'session', 'agent_token', 'reconcile_log')),
                    (select xact_commit + xact_rollback from pg_stat_database where datname = current_database())",
                &[],
            )
            .await?;
        let mut lookups = 0.0;
        for node in &cluster.nodes {
            lookups += node.metrics().await?.sum("sweep_lookups_total");
        }
        let info = info(&cluster.redis_url).await?;
        let value = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            let digits = line.and_then(|rest| rest.split(',').next());
            digits
                .and_then(|digits| digits.trim().parse().ok())
                .unwrap_or(0.0)
        };
        Ok(Counts {
            lookups,
            scans: row.get::<_, i64>(0) as f64,
            transactions: row.get::<_, i64>(1) as f64,
            commands: value("total_commands_processed:"),
            publishes: value("cmdstat_publish:calls="),
            scripts: value("cmdstat_evalsha:calls="),
            bytes: value("total_net_output_bytes:"),
        })
    }

    /// Applies a function to each count of two.
    fn zip(self, other: Counts, of: impl Fn(f64, f64) -> f64) -> Counts {
        Counts {
            lookups: of(self.lookups, other.lookups),
            scans: of(self.scans, other.scans),
            transactions: of(self.transactions, other.transactions),
            commands: of(self.commands, other.commands),
            publishes: of(self.publishes, other.publishes),
            scripts: of(self.scripts, other.scripts),
            bytes: of(self.bytes, other.bytes),
        }
    }

    /// The counts since `before`, divided by `n`.
    pub(super) fn since(self, before: Counts, n: f64) -> Counts {
        self.zip(before, |now, then| (now - then) / n)
    }

    /// The counts without those of the idle sockets in these seconds.
    pub(super) fn without(self, idle: Counts, seconds: f64) -> Counts {
        self.zip(idle, |all, idle| all - idle * seconds)
    }

    /// A row of the table under [`HEADING`].
    pub(super) fn row(&self, what: &str) -> Vec<String> {
        let numbers = [
            self.lookups,
            self.scans,
            self.transactions,
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

/// The heading of a table of counts.
pub(super) const HEADING: [&str; 8] = [
    "",
    "look-ups",
    "index scans",
    "transactions",
    "Redis commands",
    "PUBLISH",
    "EVALSHA",
    "bytes from Redis",
];

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

/// The counts per second of a minute, and the processor time of that minute.
async fn minute(cluster: &Cluster, watch: &Watch) -> Result<(Counts, Used)> {
    tokio::time::sleep(SETTLE).await;
    let (before, used) = (Counts::read(cluster).await?, watch.now());
    tokio::time::sleep(CYCLE).await;
    let (counts, used) = (Counts::read(cluster).await?, watch.now().since(&used));
    Ok((counts.since(before, CYCLE.as_secs_f64()), used))
}

/// Silent sockets, spread over the nodes. Somebody must read, or they would end as slow ones.
async fn open(crowd: &Crowd, nodes: &Cluster, sockets: usize) -> Result<Vec<JoinHandle<()>>> {
    let readers = stream::iter(0..sockets).map(async |user| {
        let mut line = crowd.connect(nodes.node(user), user, 0, None).await?;
        line.caught_up().await?;
        Result::Ok(tokio::spawn(
            async move { while line.hear().await.is_ok() {} },
        ))
    });
    readers.buffered(AT_ONCE).try_collect().await
}

/// The counts of a send to a group, without those of the silent sockets.
async fn sends(crowd: &Crowd, nodes: &Cluster, members: usize, idle: Counts) -> Result<Counts> {
    let conversation = crowd.group(0..members).await?;
    let mut sender = crowd.sender(nodes.node(0), 0, &conversation, 200).await?;
    sender.send().await?;
    let (before, started) = (Counts::read(nodes).await?, Instant::now());
    for _ in 0..SENDS {
        sender.send().await?;
        tokio::time::sleep(SEND_PAUSE).await;
    }
    // The last number of a burst follows half a second later, and Postgres's counts a second.
    tokio::time::sleep(SEND_SETTLE).await;
    let per_send = started.elapsed().as_secs_f64() / f64::from(SENDS);
    let counts = Counts::read(nodes).await?.since(before, f64::from(SENDS));
    Ok(counts.without(idle, per_send))
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let (nodes, members) = (options.nodes.unwrap_or(2), options.members);
    let sockets = options.sockets_or(1_000).max(members);
    let (place, url) = redis::place(&cluster.redis_url);
    let passage = Passage::open(place).await?;
    let url = url(&passage.place());
    let plain = Plain::start_with(cluster, nodes, &[("REDIS_URL", &url)]).await?;
    let crowd = Crowd::make(cluster, sockets, 1).await?;
    let ours = &plain.cluster;
    let watch = Watch::of(ours).await?;
    let used = watch.now();
    let readers = open(&crowd, ours, sockets).await?;
    let connecting = watch.now().since(&used);
    say(format!(
        "sweep: {sockets} sockets are up on {nodes} nodes, and silent"
    ));
    let (idle, resting) = minute(ours, &watch).await?;
    let per_send = sends(&crowd, ours, members, idle).await?;
    say("sweep: the nodes lose Redis");
    passage.cut();
    let (away, _) = minute(ours, &watch).await?;
    let ended = readers.iter().filter(|reader| reader.is_finished()).count();
    readers.iter().for_each(JoinHandle::abort);

    let each = |counts: Counts| counts.since(Counts::default(), sockets as f64);
    let table = vec![
        HEADING.map(str::to_owned).into(),
        idle.row("per second, idle"),
        each(idle).row("per socket and second, idle"),
        per_send.row("per send to the group"),
        away.row("per second, idle, without Redis"),
        each(away).row("per socket and second, idle, without Redis"),
    ];
    let notes = vec![format!(
        "{sockets} silent sockets on {nodes} nodes for a minute; then {SENDS} sends to {members} of them; then a minute \
         without Redis, in which {ended} sockets ended. A send's limits and session are among its scripts and look-ups."
    )];
    let live = nodes + cluster.nodes.len();
    let mut ratios = ratios(live, sockets, idle, per_send, away);
    let socket_seconds = sockets as f64 * CYCLE.as_secs_f64();
    ratios.extend(times(CONNECT_TIMES, &connecting, sockets as f64));
    ratios.extend(times(IDLE_TIMES, &resting, socket_seconds));
    Ok(Report {
        scenario: "sweep",
        tables: vec![table],
        ratios,
        notes,
        details: json!({ "nodes": nodes, "sockets": sockets, "members": members, "idle": idle, "sends": per_send,
            "without_redis": away, "connecting": connecting, "resting": resting }),
        faults: Faults {
            strange: ended as u64,
            ..Faults::default()
        },
        checked: u64::from(SENDS),
        p99_ms: None,
    })
}

const CONNECT_TIMES: [&str; 3] = [
    "µs of the nodes per connect",
    "µs of Postgres per connect",
    "µs of Redis per connect",
];
const IDLE_TIMES: [&str; 3] = [
    "µs of the nodes per idle socket and second",
    "µs of Postgres per idle socket and second",
    "µs of Redis per idle socket and second",
];

/// Processor time per `n`, in µs.
fn times(names: [&'static str; 3], used: &Used, n: f64) -> impl Iterator<Item = Ratio> {
    let seconds = [used.nodes.iter().sum(), used.postgres, used.redis];
    names
        .into_iter()
        .zip(seconds)
        .map(move |(what, seconds)| Ratio {
            what,
            value: seconds * 1e6 / n,
            goal: Goal::None,
        })
}

/// A message to a large group goes to every live node, so the cluster beside ours counts too.
fn ratios(live: usize, sockets: usize, idle: Counts, send: Counts, away: Counts) -> Vec<Ratio> {
    let figure = |what, value| Ratio {
        what,
        value,
        goal: Goal::None,
    };
    let everything = EVERYTHING * sockets as f64;
    vec![
        Ratio {
            what: "look-ups per socket and second / of a sweep over everything each 2 s",
            value: idle.lookups / everything,
            // A thirtieth.
            goal: Goal::AtMost(0.033, 0.022),
        },
        Ratio {
            what: "messages on Redis per send to the group / other live nodes",
            value: send.publishes / (live - 1) as f64,
            goal: Goal::AtMost(1.2, 1.05),
        },
        figure("live nodes", live as f64),
        figure("sockets", sockets as f64),
        figure("look-ups per second, idle", idle.lookups),
        figure(
            "transactions of Postgres per second, idle",
            idle.transactions,
        ),
        figure("commands of Redis per second, idle", idle.commands),
        figure("messages on Redis per second, idle", idle.publishes),
        figure("messages on Redis per send to the group", send.publishes),
        figure("bytes from Redis per send to the group", send.bytes),
        figure("look-ups per second, without Redis", away.lookups),
        figure(
            "transactions of Postgres per second, without Redis",
            away.transactions,
        ),
    ]
}
