//! `webhooks`: deliveries of a single worker beside a bare loop of POSTs with the same client.
//!
//! The receiver is in this program, and all agents share it. The bare loop is a process of its own.
//! The backlog is sent while no worker runs; then a worker starts, and its deliveries count from
//! the first to the last. At a fixed rate, times begin at the planned moment of the send and end at
//! the arrival. Everything is measured twice: with the agents of the pairs, and beside a crowd of
//! agents of which a thousand are active.

mod lines;
mod tables;

use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::{LocalSet, spawn_local},
};
use ulid::Ulid;

use self::lines::Line;
use super::sender::{Ids, Sender};
use crate::{
    Options, Result,
    baseline::{Kind, poster},
    cluster::Cluster,
    cpu::{self, Used, Watch},
    delivery::Faults,
    fixtures::{self, Pair},
    pacer::Pacer,
    plain::Plain,
    receiver::Receiver,
    report::{Report, say},
    stats::{Latencies, Quantiles},
};

/// Messages of the backlog, for all agents together.
const BACKLOG: usize = 3000;
/// Bytes of a payload.
const PAYLOAD_BYTES: usize = 1024;
/// Sends a second while delays are measured.
const RATE: u64 = 50;
/// Sends of the backlog under way at once, and loops of the bare POSTs.
const IN_FLIGHT: usize = 50;
/// Longest wait for the next delivery.
const PATIENCE: Duration = Duration::from_secs(60);
/// All agents share a receiver here.
const WORKER: [(&str, &str); 2] = [
    ("WEBHOOK_WORKER", "true"),
    ("EGRESS_MAX_IN_FLIGHT_PER_ORIGIN", "256"),
];

/// The findings of a round.
#[derive(Serialize)]
struct Round {
    /// Agents of the round that get messages.
    active: usize,
    /// Whether the crowd is there.
    is_crowded: bool,
    bare_rate: f64,
    rate: f64,
    /// CPU in µs per delivery of the backlog.
    node_us: f64,
    postgres_us: f64,
    redis_us: f64,
    /// Delays in µs at the fixed rate, from the send and of the bare loop.
    delay: Quantiles,
    bare_delay: Quantiles,
    others_percent: f64,
}

/// Runs the scenario. The cluster's own nodes must not deliver (`WEBHOOK_WORKER=false`).
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let local = LocalSet::new();
    local
        .run_until(run_here(&local, cluster, pairs, options))
        .await
}

async fn run_here(
    local: &LocalSet,
    cluster: &Cluster,
    pairs: &mut [Pair],
    options: &Options,
) -> Result<Report> {
    let receiver = Receiver::start(local).await?;
    let mut rounds = Vec::new();
    for is_crowded in [false, true] {
        fixtures::renew(cluster.node(0), pairs).await?;
        let lines = if is_crowded {
            lines::of_crowd(cluster, pairs, &receiver, options.agents).await?
        } else {
            lines::of_pairs(cluster, pairs, &receiver).await?
        };
        for n in 1..=options.rounds {
            let active = lines.len();
            say(format!(
                "webhooks: {active} active agents, round {n} of {}",
                options.rounds
            ));
            fixtures::renew(cluster.node(0), pairs).await?;
            let stage = Stage {
                cluster,
                pairs,
                lines: &lines,
                receiver: &receiver,
                span: Duration::from_secs(options.seconds),
            };
            rounds.push(Box::pin(stage.round(is_crowded)).await?);
        }
    }
    Ok(tables::report(rounds, &receiver, options.agents))
}

/// The parts of a round.
struct Stage<'a> {
    cluster: &'a Cluster,
    pairs: &'a [Pair],
    lines: &'a [Line],
    receiver: &'a Receiver,
    span: Duration,
}

impl Stage<'_> {
    async fn round(&self, is_crowded: bool) -> Result<Round> {
        let bare_rate = self.bare().await?;
        let before = self.receiver.messages();
        let sent = self.send_backlog().await?;
        let worker = Plain::start_with(self.cluster, 1, &WORKER).await?;
        let watch = Watch::of(&worker.cluster).await?;
        let (rate, used) = self.drained(&watch, before, before + sent).await?;
        let delay = self.paced().await?;
        let bare_delay = self.bare_paced().await?;
        let each = |seconds: f64| seconds * 1e6 / sent.max(1) as f64;
        Ok(Round {
            active: self.lines.len(),
            is_crowded,
            bare_rate,
            rate,
            node_us: each(used.nodes.iter().sum()),
            postgres_us: each(used.postgres),
            redis_us: each(used.redis),
            delay,
            bare_delay,
            others_percent: used.others_percent(),
        })
    }

    /// POSTs a second of the bare loop.
    async fn bare(&self) -> Result<f64> {
        let _poster = Kind::post_to(self.receiver.address.port(), IN_FLIGHT)?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (before, from) = (self.receiver.requests(), Instant::now());
        tokio::time::sleep(self.span).await;
        let count = self.receiver.requests() - before;
        Ok(count as f64 / from.elapsed().as_secs_f64())
    }

    async fn sender(&self, n: usize) -> Result<Sender> {
        let Line { pair, conversation } = &self.lines[n];
        let node = self.cluster.node(n);
        Sender::open_to(node, &self.pairs[*pair], conversation, PAYLOAD_BYTES).await
    }

    /// Returns the number of messages.
    async fn send_backlog(&self) -> Result<usize> {
        let ids = Ids::new();
        let each = BACKLOG.div_ceil(self.lines.len());
        let senders = (0..self.lines.len()).map(async |n| -> Result<()> {
            let mut sender = self.sender(n).await?;
            for count in 0..each as u64 {
                sender.send(ids.id(n, count)).await?;
            }
            Ok(())
        });
        let sends: Vec<()> = stream::iter(senders)
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await?;
        Ok(sends.len() * each)
    }

    /// Waits for the messages from the one after `before` to `total`. Returns the rate from the
    /// first to the last, and the processor time between them.
    async fn drained(&self, watch: &Watch, before: usize, total: usize) -> Result<(f64, Used)> {
        self.arrived(before + 1).await?;
        let start = watch.now();
        self.arrived(total).await?;
        let used = watch.now().since(&start);
        let arrivals = self.receiver.arrivals.borrow();
        let new = &arrivals.messages[before..total];
        let (Some(first), Some(last)) = (new.first(), new.last()) else {
            return Err("nothing was delivered".into());
        };
        let seconds = last.0.duration_since(first.0).as_secs_f64();
        Ok(((new.len() - 1) as f64 / seconds.max(0.001), used))
    }

    /// Waits until `total` messages have arrived.
    async fn arrived(&self, total: usize) -> Result<()> {
        let (mut seen, mut since) = (self.receiver.messages(), Instant::now());
        while seen < total {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = self.receiver.messages();
            if now > seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > PATIENCE {
                return Err(format!("{} deliveries do not arrive", total - seen).into());
            }
        }
        Ok(())
    }

    /// The delays of sends at the fixed rate, to one agent after another.
    async fn paced(&self) -> Result<Quantiles> {
        let count = RATE * self.span.as_secs();
        // An open loop: a slow send holds up nothing but its own agent.
        let mut lanes = Vec::new();
        for n in 0..self.lines.len().min(usize::try_from(count)?) {
            let (to_lane, ids) = mpsc::unbounded_channel();
            let task = spawn_local(lane(self.sender(n).await?, ids));
            lanes.push((to_lane, task));
        }
        let (ids, before) = (Ids::new(), self.receiver.messages());
        let mut pacer = Pacer::start(RATE)?;
        let schedule = pacer.schedule();
        for _ in 0..count {
            let n = pacer.next().await?;
            let to = usize::try_from(n)? % lanes.len();
            lanes[to].0.send(ids.id(to, n)).ok();
        }
        for (to_lane, task) in lanes {
            drop(to_lane);
            task.await??;
        }
        self.arrived(before + usize::try_from(count)?).await?;
        let mut delays = Latencies::new();
        for (at, id) in &self.receiver.arrivals.borrow().messages[before..] {
            if let Some(n) = id.and_then(|id| ids.number(id)) {
                delays.record(at.saturating_duration_since(schedule.moment(n)));
            }
        }
        Ok(delays.quantiles())
    }

    /// Delays of bare POSTs at the fixed rate, from the planned moment to the answer.
    async fn bare_paced(&self) -> Result<Quantiles> {
        let egress = poster::client();
        let url = format!("http://{}/bare", self.receiver.address);
        let mut pacer = Pacer::start(RATE)?;
        let schedule = pacer.schedule();
        let mut delays = Latencies::new();
        for _ in 0..RATE * self.span.as_secs() {
            let n = pacer.next().await?;
            let answer = egress.post(&url, HeaderMap::default(), poster::body());
            answer.await?;
            delays.record(schedule.moment(n).elapsed());
        }
        Ok(delays.quantiles())
    }
}

/// Sends the messages of an agent, one after another.
async fn lane(mut sender: Sender, mut ids: mpsc::UnboundedReceiver<Ulid>) -> Result<()> {
    while let Some(id) = ids.recv().await {
        sender.send(id).await?;
    }
    Ok(())
}
