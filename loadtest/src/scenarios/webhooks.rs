//! `webhooks`: deliveries of a single worker beside a bare loop of POSTs with the same client.
//!
//! The receiver is in this program, and all agents share it. The bare loop is a process of its own
//! and posts as many bodies at once as there are agents. The backlog is sent while no worker runs; then
//! one starts, and its deliveries count from the first to the last. At a fixed rate, times begin at
//! the planned moment of the send and end at the arrival.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio::task::LocalSet;

use super::sender::{Ids, Sender};
use crate::{
    Options, Result,
    baseline::{Kind, poster},
    cluster::Cluster,
    cpu::{self, Used, Watch},
    delivery::Faults,
    fixtures::{self, Pair},
    http::request,
    pacer::Pacer,
    plain::Plain,
    receiver::Receiver,
    report::{Goal, Ratio, Report, say},
    stats::{Latencies, Quantiles, median},
};

/// Messages of the backlog, for each agent.
const BACKLOG: u64 = 60;
/// Bytes of a payload.
const PAYLOAD_BYTES: usize = 1024;
/// Sends a second while delays are measured.
const RATE: u64 = 50;
/// Longest wait for the last delivery.
const PATIENCE: Duration = Duration::from_secs(60);

/// The findings of a round.
#[derive(Serialize)]
struct Round {
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
    fixtures::renew(cluster, pairs).await?;
    register(cluster, pairs, &receiver).await?;
    let (mut rounds, mut sent) = (Vec::new(), 0);
    for n in 1..=options.rounds {
        say(format!("webhooks: round {n} of {}", options.rounds));
        fixtures::renew(cluster, pairs).await?;
        rounds.push(round(cluster, pairs, &receiver, options, &mut sent).await?);
    }
    let arrivals = receiver.arrivals.borrow();
    let arrived = arrivals.messages.len() as u64;
    let faults = Faults {
        lost: sent - arrived.min(sent),
        ..arrivals.faults
    };
    let mut notes = vec![
        "Medians of the rounds. CPU: µs of processor time per delivery. Delay: from the planned moment of a send."
            .to_owned(),
    ];
    let others = rounds.iter().map(|round| round.others_percent);
    notes.extend(cpu::remark(others.fold(0.0, f64::max)));
    Ok(Report {
        scenario: "webhooks",
        tables: vec![table(&rounds)],
        ratios: ratios(&rounds),
        notes,
        details: json!({ "agents": pairs.len(), "rounds": rounds }),
        faults,
        checked: sent,
    })
}

/// Gives every agent a webhook at the receiver.
async fn register(cluster: &Cluster, pairs: &[Pair], receiver: &Receiver) -> Result<()> {
    let node = cluster.node(0);
    let mut link = node.link().await?;
    for pair in pairs {
        let path = format!("/agents/{}/webhook", pair.agent_id);
        let body = json!({ "url": format!("http://{}/hook", receiver.address) }).to_string();
        let bearer = format!("Bearer {}", pair.agent_token);
        let headers = [("authorization", bearer.as_str())];
        let put = request(
            "PUT",
            &node.address,
            &path,
            &pair.address,
            &headers,
            Some(&body),
        );
        let answer = link.ask(&put).await?;
        if answer.status != 200 {
            return Err(format!("no webhook: {}", String::from_utf8_lossy(&answer.body)).into());
        }
    }
    Ok(())
}

async fn round(
    cluster: &Cluster,
    pairs: &[Pair],
    receiver: &Receiver,
    options: &Options,
    sent: &mut u64,
) -> Result<Round> {
    let span = Duration::from_secs(options.seconds);
    let bare_rate = bare(receiver, pairs.len(), span).await?;
    send_backlog(cluster, pairs).await?;
    *sent += BACKLOG * pairs.len() as u64;
    let worker = Plain::start_with(cluster, 1, &[("WEBHOOK_WORKER", "true")]).await?;
    let watch = Watch::of(&worker.cluster).await?;
    let (rate, used, count) = drained(receiver, &watch, *sent).await?;
    let (delay, paced) = paced(cluster, pairs, receiver, span, *sent).await?;
    *sent += paced;
    let bare_delay = bare_paced(receiver, span).await?;
    let each = |seconds: f64| seconds * 1e6 / count.max(1.0);
    Ok(Round {
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
async fn bare(receiver: &Receiver, lanes: usize, span: Duration) -> Result<f64> {
    let _poster = Kind::post_to(receiver.address.port(), lanes)?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, from) = (receiver.arrivals.borrow().requests, Instant::now());
    tokio::time::sleep(span).await;
    let count = receiver.arrivals.borrow().requests - before;
    Ok(count as f64 / from.elapsed().as_secs_f64())
}

async fn send_backlog(cluster: &Cluster, pairs: &[Pair]) -> Result<()> {
    let ids = Ids::new();
    let senders = pairs
        .iter()
        .enumerate()
        .map(async |(n, pair)| -> Result<()> {
            let mut sender = Sender::open(cluster.node(n), pair, PAYLOAD_BYTES).await?;
            for count in 0..BACKLOG {
                sender.send(ids.id(n, count)).await?;
            }
            Ok(())
        });
    stream::iter(senders)
        .buffer_unordered(pairs.len().max(1))
        .try_collect()
        .await
}

/// Waits until `total` messages have arrived. Returns the rate from the first to the last, and the
/// processor time of it.
async fn drained(receiver: &Receiver, watch: &Watch, total: u64) -> Result<(f64, Used, f64)> {
    let began = Instant::now();
    let before = receiver.arrivals.borrow().messages.len();
    while receiver.arrivals.borrow().messages.len() <= before {
        waiting(began)?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let start = watch.now();
    while (receiver.arrivals.borrow().messages.len() as u64) < total {
        waiting(began)?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let used = watch.now().since(&start);
    let arrivals = receiver.arrivals.borrow();
    let new = &arrivals.messages[before..];
    let (Some(first), Some(last)) = (new.first(), new.last()) else {
        return Err("nothing was delivered".into());
    };
    let seconds = last.0.duration_since(first.0).as_secs_f64();
    let count = new.len() as f64;
    Ok(((count - 1.0) / seconds.max(0.001), used, count))
}

fn waiting(began: Instant) -> Result<()> {
    if began.elapsed() > PATIENCE {
        return Err("deliveries do not arrive".into());
    }
    Ok(())
}

/// Sends at the fixed rate, to one agent after another. Returns the delays and the number of sends.
async fn paced(
    cluster: &Cluster,
    pairs: &[Pair],
    receiver: &Receiver,
    span: Duration,
    before: u64,
) -> Result<(Quantiles, u64)> {
    let mut senders = Vec::new();
    for (n, pair) in pairs.iter().enumerate() {
        senders.push(Sender::open(cluster.node(n), pair, PAYLOAD_BYTES).await?);
    }
    let (ids, count) = (Ids::new(), RATE * span.as_secs());
    let mut pacer = Pacer::start(RATE)?;
    let schedule = pacer.schedule();
    for _ in 0..count {
        let n = pacer.next().await?;
        let who = usize::try_from(n)? % senders.len();
        senders[who].send(ids.id(who, n)).await?;
    }
    let began = Instant::now();
    while (receiver.arrivals.borrow().messages.len() as u64) < before + count {
        waiting(began)?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut delays = Latencies::new();
    for (at, id) in &receiver.arrivals.borrow().messages {
        if let Some(n) = id.and_then(|id| ids.number(id)) {
            delays.record(at.saturating_duration_since(schedule.moment(n)));
        }
    }
    Ok((delays.quantiles(), count))
}

/// Delays of bare POSTs at the fixed rate, from the planned moment to the answer.
async fn bare_paced(receiver: &Receiver, span: Duration) -> Result<Quantiles> {
    let (egress, url) = (
        poster::client(),
        format!("http://{}/bare", receiver.address),
    );
    let mut pacer = Pacer::start(RATE)?;
    let schedule = pacer.schedule();
    let mut delays = Latencies::new();
    for _ in 0..RATE * span.as_secs() {
        let n = pacer.next().await?;
        egress
            .post(&url, Default::default(), poster::body())
            .await?;
        delays.record(schedule.moment(n).elapsed());
    }
    Ok(delays.quantiles())
}

fn table(rounds: &[Round]) -> Vec<Vec<String>> {
    let heading = [
        "", "per s", "p50 ms", "p99 ms", "node CPU", "Postgres", "Redis", "others %",
    ];
    let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    let ms = |value: fn(&Round) -> f64| format!("{:.2}", of(value) / 1000.0);
    let none = || "–".to_owned();
    vec![
        heading.map(str::to_owned).into(),
        vec![
            "webhooks".to_owned(),
            format!("{:.0}", of(|round| round.rate)),
            ms(|round| round.delay.p50),
            ms(|round| round.delay.p99),
            format!("{:.0}", of(|round| round.node_us)),
            format!("{:.0}", of(|round| round.postgres_us)),
            format!("{:.0}", of(|round| round.redis_us)),
            format!("{:.0}", of(|round| round.others_percent)),
        ],
        vec![
            "bare POSTs".to_owned(),
            format!("{:.0}", of(|round| round.bare_rate)),
            ms(|round| round.bare_delay.p50),
            ms(|round| round.bare_delay.p99),
            none(),
            none(),
            none(),
            none(),
        ],
    ]
}

fn ratios(rounds: &[Round]) -> Vec<Ratio> {
    let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    vec![
        Ratio {
            what: "deliveries / bare POSTs",
            value: of(|round| round.rate / round.bare_rate),
            goal: Goal::AtLeast(0.5, 0.8),
        },
        Ratio {
            what: "delay p50 / 3.0 ms",
            value: of(|round| round.delay.p50 / 3000.0),
            goal: Goal::None,
        },
    ]
}
