//! `frames`: the rate of durable sends over sockets, beside the least work of Postgres for the same task.
//!
//! A socket may send 60 frames a second, so many sockets send a little fewer. They do not wait for an answer
//! before the next frame. Each sender's own sockets also get the events of its messages. Afterwards every agent
//! replays its inbox, as in `send`.

use std::{collections::VecDeque, time::Duration};

use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use super::{
    send::{self, Driven, Found},
    sender::Ids,
};
use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{self, Watch},
    delivery::{Acked, Faults},
    fixtures::{self, Pair},
    pgbench::{self, Peer, Pgbench, Speed},
    report::{Goal, Ratio, Report, say, warn},
    socket::Socket,
    stats::{Latencies, median},
};

const PAYLOAD_BYTES: usize = 1024;
const WARM_UP: Duration = Duration::from_secs(1);
/// The most sends that a socket has under way.
const WINDOW: usize = 8;
/// Between two frames of a socket: 50 frames a second.
const FRAME_INTERVAL: Duration = Duration::from_millis(20);
const SOCKETS_PER_USER: usize = 4;

#[derive(Serialize)]
struct Round {
    found: Found,
    batch: Option<Speed>,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let watch = Watch::of(cluster).await?;
    let pgbench = if options.no_peers {
        None
    } else {
        Some(Pgbench::prepare(cluster, PAYLOAD_BYTES).await?)
    };
    let (mut rounds, mut faults, mut checked) = (Vec::new(), Faults::default(), 0);
    for n in 1..=options.rounds {
        say(format!("frames: round {n} of {}", options.rounds));
        fixtures::renew(cluster.node(0), pairs).await?;
        watch.quiet().await;
        let driven = drive(cluster, &watch, pairs, options).await?;
        checked += driven.acked.iter().map(Vec::len).sum::<usize>() as u64;
        faults.add(&send::verify(cluster, pairs, &driven).await?);
        let mut batch = None;
        if let Some(pgbench) = &pgbench {
            watch.quiet().await;
            batch = Some(pgbench.run(Peer::Batch, options.seconds).await?);
        }
        rounds.push(Round {
            found: driven.found,
            batch,
        });
    }
    Ok(report(&rounds, options, faults, checked))
}

/// Keeps the sockets of all users busy for the warm-up and the measured time.
async fn drive(
    cluster: &Cluster,
    watch: &Watch,
    pairs: &[Pair],
    options: &Options,
) -> Result<Driven> {
    let before = send::batches(cluster).await?;
    let ids = Ids::new();
    let mut senders = Vec::new();
    for n in 0..pairs.len() * SOCKETS_PER_USER {
        let pair = n % pairs.len();
        let socket = Socket::open_user(cluster.node(n), &pairs[pair]).await?;
        let frame = Frame::to(&pairs[pair].conversation_id);
        senders.push((
            pair,
            Sender {
                socket,
                frame,
                ids,
                who: n,
            },
        ));
    }
    let start = Instant::now() + WARM_UP;
    let end = start + Duration::from_secs(options.seconds);
    let spawn = |(pair, sender): (usize, Sender)| (pair, tokio::spawn(sender.work(start, end)));
    let workers: Vec<_> = senders.into_iter().map(spawn).collect();
    sleep_until(start).await;
    let then = watch.now();
    sleep_until(end).await;
    let cpu = watch.now().since(&then);
    let mut latencies = Latencies::new();
    let (mut acked, mut failed) = (vec![Vec::new(); pairs.len()], vec![0; pairs.len()]);
    for (pair, worker) in workers {
        let sent = worker.await?;
        latencies.add(&sent.latencies);
        acked[pair].extend(sent.acked);
        failed[pair] += sent.failed;
    }
    let after = send::batches(cluster).await?;
    let (transactions, answer) = ((after.0 - before.0).max(1.0), latencies.quantiles());
    Ok(Driven {
        found: Found {
            phase: "frames, two nodes",
            rate: answer.count as f64 / options.seconds as f64,
            messages: answer.count,
            answer,
            cpu,
            batch: (after.1 - before.1) / transactions,
            commit_ms: (after.2 - before.2) / transactions * 1000.0,
        },
        acked,
        failed,
    })
}

/// The text of a `message.send` around its id.
struct Frame {
    before_id: String,
    after_id: String,
}

impl Frame {
    fn to(conversation: &str) -> Self {
        let envelope = r#"{"type":"text","text":""}"#.len();
        let text = "x".repeat(PAYLOAD_BYTES - envelope);
        Frame {
            before_id: format!(
                r#"{{"type":"message.send","conversation_id":"{conversation}","client_message_id":""#
            ),
            after_id: format!(r#"","payload":{{"type":"text","text":"{text}"}}}}"#),
        }
    }
}

/// A user that sends over a socket.
struct Sender {
    socket: Socket,
    frame: Frame,
    ids: Ids,
    who: usize,
}

struct Sent {
    latencies: Latencies,
    acked: Vec<Acked>,
    failed: u64,
}

impl Sender {
    /// Sends a frame every [`FRAME_INTERVAL`] until `end`. Those that are answered after `start` count.
    async fn work(mut self, start: Instant, end: Instant) -> Sent {
        let mut sent = Sent {
            latencies: Latencies::new(),
            acked: Vec::new(),
            failed: 0,
        };
        let (mut under_way, mut count) = (VecDeque::new(), 0);
        // Spread over the interval, so that batches are not those of a metronome.
        let offset = FRAME_INTERVAL * u32::try_from(self.who % 20).unwrap_or_default() / 20;
        let mut frames = tokio::time::interval_at(Instant::now() + offset, FRAME_INTERVAL);
        frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while Instant::now() < end || !under_way.is_empty() {
            tokio::select! {
                at = frames.tick(), if under_way.len() < WINDOW && Instant::now() < end => {
                    under_way.push_back(at);
                    if let Err(failure) = self.write(count).await {
                        warn(format!("a frame was not written: {failure}"));
                        break;
                    }
                    count += 1;
                }
                answer = self.socket.answer() => match answer {
                    Ok(acked) => {
                        let (began, now) = (under_way.pop_front(), Instant::now());
                        sent.acked.push(acked);
                        if let Some(began) = began.filter(|_| now >= start && now < end) {
                            sent.latencies.record(now - began);
                        }
                    }
                    Err(failure) => {
                        warn(format!("a send failed: {failure}"));
                        break;
                    }
                },
            }
        }
        sent.failed = under_way.len() as u64;
        // Else the next round would begin with the events of this one.
        if let Err(failure) = self.socket.acknowledge().await {
            warn(format!("events were not acknowledged: {failure}"));
        }
        self.socket.close().await;
        sent
    }

    async fn write(&mut self, count: u64) -> Result<()> {
        let Frame {
            before_id,
            after_id,
        } = &self.frame;
        let id = self.ids.id(self.who, count);
        self.socket.say(format!("{before_id}{id}{after_id}")).await
    }
}

fn report(rounds: &[Round], options: &Options, faults: Faults, checked: u64) -> Report {
    let sockets = options.pairs * SOCKETS_PER_USER;
    let of = |value: &dyn Fn(&Found) -> f64| median(rounds.iter().map(|round| value(&round.found)));
    let per_message = |seconds: &dyn Fn(&Found) -> f64| {
        let cost = of(&|found| seconds(found) * 1e6 / found.messages.max(1) as f64);
        format!("{cost:.0}")
    };
    let heading = [
        "",
        "msg/s",
        "p50 ms",
        "p99 ms",
        "batch",
        "commit ms",
        "nodes CPU",
        "Postgres",
        "Redis",
        "client",
        "others %",
    ];
    let row = vec![
        "frames, two nodes".to_owned(),
        format!("{:.0}", of(&|found| found.rate)),
        format!("{:.2}", of(&|found| found.answer.p50 / 1000.0)),
        format!("{:.2}", of(&|found| found.answer.p99 / 1000.0)),
        format!("{:.1}", of(&|found| found.batch)),
        format!("{:.2}", of(&|found| found.commit_ms)),
        per_message(&|found| found.cpu.nodes.iter().sum()),
        per_message(&|found| found.cpu.postgres),
        per_message(&|found| found.cpu.redis),
        per_message(&|found| found.cpu.client),
        format!("{:.0}", of(&|found| found.cpu.others_percent())),
    ];
    let mut ratios = Vec::new();
    let speeds: Vec<f64> = rounds
        .iter()
        .filter_map(|round| Some(round.batch.as_ref()?.tps * pgbench::BATCH as f64))
        .collect();
    if !speeds.is_empty() {
        ratios.push(Ratio {
            what: "frames, two nodes / pgbench batch 64",
            value: of(&|found| found.rate) / median(speeds),
            goal: Goal::AtLeast(0.3, 0.5),
        });
    }
    let mut notes = vec![format!(
        "{sockets} sockets of 50 frames a second each. Medians of the rounds. CPU: µs of processor time per message."
    )];
    let others = rounds.iter().map(|round| round.found.cpu.others_percent());
    notes.extend(cpu::remark(others.fold(0.0, f64::max)));
    Report {
        scenario: "frames",
        tables: vec![vec![heading.map(str::to_owned).into(), row]],
        ratios,
        notes,
        details: json!({ "payload_bytes": PAYLOAD_BYTES, "sockets": sockets,
            "seconds": options.seconds, "rounds": rounds }),
        faults,
        checked,
        p99_ms: None,
    }
}
