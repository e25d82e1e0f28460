//! `nodes`: a hundred nodes' sweep and backplane against real Postgres and Redis, with simulated
//! sockets. It runs the code of a node without its HTTP and WebSockets, so that a machine holds many.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use blindpipe::{
    auth::server_secret::ServerSecret,
    clock::Clock,
    db::{Db, Plans},
    delivery::{
        self, Backplane, MessageSigner, NoEphemeralEvents, Parts, RedisPubSub, Subscription,
        SubscriptionGuard,
    },
    ids::{CredentialId, NodeId, Principal, PrincipalId},
    inbox::{AppendedEvent, Delivery, Inbox},
    limits::slots::Slots,
    node,
    random::Random,
    redis::Redis,
};
use blindpipe_protocol::cursor::Cursor;
use serde::Serialize;
use serde_json::json;
use tokio_postgres::NoTls;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::sweep::{Counts, HEADING};
use crate::{
    Options, Result,
    cluster::{Cluster, Metrics},
    crowd::{Crowd, environment},
    delivery::Faults,
    report::{Goal, Ratio, Report, say},
    stats::{Latencies, Quantiles},
};

const MAX_NODES: usize = 100;
/// Connections to Postgres that the simulated nodes share. A real node has three of its own.
const CONNECTIONS: usize = 24;
/// The recipients of an event.
const MEMBERS: usize = 50;
/// Events that are published, and events whose hints are lost at the sender.
const EVENTS: usize = 200;
const LOST_EVENTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_secs(15);
const CYCLE: Duration = Duration::from_secs(60);
/// The longest wait for an event.
const TIMEOUT: Duration = Duration::from_secs(70);
/// A body of the usual size.
const BODY_BYTES: usize = 600;
/// On paper: a message's seal and head, a recipient's number and id, and an answer of the directory.
const SEAL_BYTES: f64 = 128.0;
const RECIPIENT_BYTES: f64 = 32.0;
const PLACE_BYTES: f64 = 40.0;
/// On paper: the bound of an event whose hint was lost at its sender.
const LOG_BOUND_US: f64 = 3e6;

/// The arrivals at all simulated sockets.
struct Ear {
    arrived: AtomicU64,
    ended: AtomicU64,
    /// When the present event was told, and the times of its arrivals.
    heard: Mutex<(Option<Instant>, Latencies)>,
}

impl Ear {
    fn heard(&self) -> MutexGuard<'_, (Option<Instant>, Latencies)> {
        self.heard
            .lock()
            .unwrap_or_else(|_| unreachable!("nothing panics under the lock"))
    }
}

/// Nodes that share this process.
struct Nodes {
    backplanes: Vec<Backplane>,
    sockets: Vec<Arc<SubscriptionGuard>>,
    /// The owner of each socket. Socket `n` is on node `n` modulo their number.
    principals: Vec<Uuid>,
    ear: Arc<Ear>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Nodes {
    async fn start(cluster: &Cluster, crowd: &Crowd, nodes: usize, sockets: usize) -> Result<Self> {
        let environment = environment(cluster.node(0).pid)?;
        let config = node::read_settings(|name| environment.get(name).cloned())
            .map_err(|faults| faults.to_string())?;
        let secret: ServerSecret = environment
            .get("SERVER_SECRET")
            .ok_or("the cluster has no secret")?
            .parse()?;
        let patience = Duration::from_secs(2);
        let url = &config.database_url;
        let db = Db::new(url, "simulated", CONNECTIONS, Plans::Free, patience)?;
        let epoch = Inbox::new(db.clone())
            .epoch()
            .await
            .map_err(|error| format!("{error:?}"))?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let prefix = format!("{}-simulated-{}", config.redis_prefix, std::process::id());
        let clock = Clock::default();
        let random = Random::new(clock.clone());
        let mut backplanes = Vec::with_capacity(nodes);
        for _ in 0..nodes {
            let (redis, subscriber) = Redis::start(&config.redis_url, &prefix, patience)?;
            redis.ping().await;
            let id = NodeId(random.ulid());
            let backplane = delivery::start(Parts {
                store: &db,
                redis: &redis,
                transport: RedisPubSub::new(id, &redis, subscriber),
                signer: MessageSigner::new(id, &secret, epoch),
                secret: &secret,
                observer: Arc::new(|_| ()),
                handler: Arc::new(NoEphemeralEvents),
                mark_revoked: Arc::new(|_, _| Box::pin(async { Ok(()) })),
                tasks: &tasks,
                stop: &stop,
            });
            let slots = Slots::new(redis, clock.clone(), random.clone(), id);
            slots.on_beat(backplane.on_beat());
            slots.start(&tasks, &stop, backplane.hub().liveness());
            backplanes.push(backplane);
        }
        let mut simulated = Nodes {
            backplanes,
            sockets: Vec::with_capacity(sockets),
            principals: Vec::with_capacity(sockets),
            ear: Arc::new(Ear {
                arrived: AtomicU64::new(0),
                ended: AtomicU64::new(0),
                heard: Mutex::new((None, Latencies::new())),
            }),
            tasks,
            stop,
        };
        for user in 0..sockets {
            simulated.open(crowd.session(user, 0), user, epoch);
        }
        Ok(simulated)
    }

    /// Opens a simulated socket. It takes what it gets, and reads nothing.
    fn open(&mut self, (principal, session): (Uuid, Uuid), n: usize, epoch: u64) {
        let hub = self.backplanes[n % self.backplanes.len()].hub();
        let (owner, credential) = (PrincipalId(principal), CredentialId(session));
        let socket = Arc::new(hub.join(Subscription::new(owner, credential, 0)));
        socket.set_start(Cursor { epoch, seq: 0 });
        let (own, ear, stop) = (socket.clone(), self.ear.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            while stop.run_until_cancelled(own.notified()).await.is_some() {
                let mail = own.take();
                if mail.end.is_some() {
                    ear.ended.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                if mail.head > own.sent() {
                    own.set_sent(mail.head);
                    let mut heard = ear.heard();
                    if let Some(at) = heard.0 {
                        heard.1.record(at.elapsed());
                    }
                    ear.arrived.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        self.sockets.push(socket);
        self.principals.push(principal);
    }

    /// The number of nodes other than the sender's that serve members of an event.
    fn serving(&self, event: usize) -> usize {
        let all = self.backplanes.len();
        let places: HashMap<Uuid, usize> = (self.principals.iter().enumerate())
            .map(|(n, id)| (*id, n % all))
            .collect();
        let members = self.members(event);
        let nodes: HashSet<usize> = members.iter().map(|id| places[id]).collect();
        nodes.len() - usize::from(nodes.contains(&(event % all)))
    }

    /// Members who are spread over the nodes, others for each event.
    fn members(&self, event: usize) -> Vec<Uuid> {
        let of = |n: usize| self.principals[(event * 131 + n * 7_919) % self.principals.len()];
        let mut members: Vec<Uuid> = (0..MEMBERS).map(of).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Commits an event and tells it, or loses its hint. Returns the number of missing arrivals.
    async fn event(&self, client: &tokio_postgres::Client, n: usize, is_lost: bool) -> Result<u64> {
        let members = self.members(n);
        let rows = client
            .query(
                "update inbox set head_seq = head_seq + 1 where principal_id = any($1) returning principal_id, head_seq",
                &[&members],
            )
            .await?;
        let deliveries: Vec<Delivery> = rows
            .iter()
            .map(|row| Delivery {
                recipient: Principal::User(row.get(0)),
                seq: row.get(1),
                has_webhook: false,
            })
            .collect();
        let awaited = self.ear.arrived.load(Ordering::Relaxed) + deliveries.len() as u64;
        self.ear.heard().0 = Some(Instant::now());
        let event = AppendedEvent {
            encoded: "x".repeat(BODY_BYTES).into(),
            deliveries,
            trace: None,
        };
        let sender = &self.backplanes[n % self.backplanes.len()];
        if is_lost {
            drop(sender.guard(&[event]));
        } else {
            sender.publish(&[event]);
        }
        let began = Instant::now();
        let missing = || awaited.saturating_sub(self.ear.arrived.load(Ordering::Relaxed));
        while missing() > 0 && began.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(missing())
    }

    /// The times of the arrivals so far, which begin anew.
    fn times(&self) -> Latencies {
        std::mem::replace(&mut self.ear.heard().1, Latencies::new())
    }
}

fn times_row(what: &str, times: &Quantiles) -> Vec<String> {
    vec![
        what.to_owned(),
        format!("{:.0}", times.p50),
        format!("{:.0}", times.p99),
    ]
}

/// The counts of the servers, with the look-ups of the simulated nodes.
async fn counts(cluster: &Cluster) -> Result<Counts> {
    Ok(Counts {
        lookups: Metrics::own().sum("sweep_lookups_total"),
        ..Counts::read(cluster).await?
    })
}

/// The findings.
#[derive(Serialize)]
struct Found {
    sockets: usize,
    /// Per second.
    idle: Counts,
    /// Per event.
    event: Counts,
    by_hint: Quantiles,
    by_log: Quantiles,
    /// Nodes that serve recipients of an event elsewhere, in the mean.
    serving: f64,
    ended: u64,
    lost: u64,
}

impl Found {
    async fn measure(cluster: &Cluster, nodes: &Nodes) -> Result<Self> {
        tokio::time::sleep(SETTLE).await;
        let before = counts(cluster).await?;
        tokio::time::sleep(CYCLE).await;
        let idle = counts(cluster).await?.since(before, CYCLE.as_secs_f64());
        nodes.times();
        let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
        tokio::spawn(link);
        let (before, began) = (counts(cluster).await?, Instant::now());
        let mut lost = 0;
        for n in 0..EVENTS {
            lost += nodes.event(&client, n, false).await?;
            tokio::time::sleep(PAUSE).await;
        }
        let each = began.elapsed().as_secs_f64() / EVENTS as f64;
        let event = counts(cluster).await?.since(before, EVENTS as f64);
        let by_hint = nodes.times().quantiles();
        for n in 0..LOST_EVENTS {
            lost += nodes.event(&client, n, true).await?;
        }
        let serving = (0..EVENTS).map(|n| nodes.serving(n)).sum::<usize>();
        Ok(Found {
            sockets: nodes.sockets.len(),
            idle,
            event: event.without(idle, each),
            by_hint,
            by_log: nodes.times().quantiles(),
            serving: serving as f64 / EVENTS as f64,
            ended: nodes.ear.ended.load(Ordering::Relaxed),
            lost,
        })
    }

    /// The findings beside those that `docs/scaling.md` has on paper.
    fn ratios(&self, nodes: usize) -> Vec<Ratio> {
        // Without the readings of the log, which the nodes do not count.
        let lookups = self.sockets as f64 / 30.0;
        let bytes = self.serving * (SEAL_BYTES + BODY_BYTES as f64)
            + MEMBERS as f64 * (RECIPIENT_BYTES + PLACE_BYTES);
        let within_two = |what, value| Ratio {
            what,
            value,
            goal: Goal::AtMost(2.0, 1.2),
        };
        let figure = |what, value| Ratio {
            what,
            value,
            goal: Goal::None,
        };
        vec![
            within_two(
                "look-ups per second, idle / on paper",
                self.idle.lookups / lookups,
            ),
            within_two(
                "messages on Redis per event / on paper",
                self.event.publishes / self.serving,
            ),
            within_two(
                "bytes from Redis per event / on paper",
                self.event.bytes / bytes,
            ),
            within_two(
                "p99 of an arrival whose hint was lost / 3 s on paper",
                self.by_log.p99 / LOG_BOUND_US,
            ),
            figure("nodes", nodes as f64),
            figure("sockets", self.sockets as f64),
            figure("look-ups per second, idle", self.idle.lookups),
            figure("commands of Redis per second, idle", self.idle.commands),
            figure("messages on Redis per event", self.event.publishes),
            figure("ms to an arrival by hint, p50", self.by_hint.p50 / 1000.0),
            figure("ms to an arrival by hint, p99", self.by_hint.p99 / 1000.0),
            figure("ms to an arrival by the log, p50", self.by_log.p50 / 1000.0),
        ]
    }
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let nodes = options.nodes.unwrap_or(MAX_NODES).max(1);
    let sockets = options.sockets_or(20_000).max(MEMBERS);
    let crowd = Crowd::make(cluster, sockets, 1).await?;
    let simulated = Nodes::start(cluster, &crowd, nodes, sockets).await?;
    say(format!(
        "nodes: {nodes} nodes with {sockets} sockets are up"
    ));
    let found = Found::measure(cluster, &simulated).await?;
    let table = vec![
        HEADING.map(str::to_owned).into(),
        found.idle.row("per second, idle"),
        found.event.row("per event for 50"),
    ];
    let times = vec![
        ["µs to an arrival", "p50", "p99"].map(str::to_owned).into(),
        times_row("by hint", &found.by_hint),
        times_row("by the log", &found.by_log),
    ];
    let notes = vec![format!(
        "{nodes} simulated nodes with {sockets} sockets share {CONNECTIONS} connections to Postgres and one thread. An event \
         has {:.1} serving nodes in the mean. {} sockets ended.",
        found.serving, found.ended
    )];
    let faults = Faults {
        lost: found.lost,
        ..Faults::default()
    };
    Ok(Report {
        scenario: "nodes",
        tables: vec![table, times],
        ratios: found.ratios(nodes),
        notes,
        details: json!(found),
        faults,
        checked: (EVENTS + LOST_EVENTS) as u64,
        p99_ms: None,
    })
}
