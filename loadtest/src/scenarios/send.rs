//! `send`: the rate of durable sends, and the time of a single one. Each round also measures the
//! least work of Postgres for the same task.
//!
//! No client listens during the measurement. After each phase, every agent opens a socket and reads
//! its inbox. The check then shows whether every acked message is there, once and in order.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::sender::{Ids, Sender};
use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{self, Used, Watch},
    delivery::{Acked, Faults},
    fixtures::{self, Pair},
    pgbench::{self, Peer, Pgbench, Speed},
    report::{Goal, Ratio, Report, say, warn},
    socket::Socket,
    stats::{Latencies, Quantiles, median},
};

const PAYLOAD_BYTES: usize = 1024;
const WARM_UP: Duration = Duration::from_secs(1);

/// A way of sending.
#[derive(Clone, Copy)]
pub struct Phase {
    pub name: &'static str,
    pub in_flight: usize,
    pub nodes: usize,
}

/// The findings of one phase of one round.
#[derive(Clone, Serialize)]
pub struct Found {
    pub phase: &'static str,
    /// Messages per second.
    pub rate: f64,
    /// Time to the answer.
    pub answer: Quantiles,
    /// The number of messages in the measured time, and their cost.
    pub messages: u64,
    pub cpu: Used,
    /// Messages of one transaction, and its time in ms.
    pub batch: f64,
    pub commit_ms: f64,
}

/// A round.
#[derive(Serialize)]
struct Round {
    found: Vec<Found>,
    peers: Vec<Compared>,
}

/// The findings for a peer, and the percentage of the machine that other programs used.
#[derive(Serialize)]
struct Compared {
    peer: Peer,
    speed: Speed,
    others: f64,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let both = cluster.nodes.len();
    let phases = [
        Phase {
            name: "REST, two nodes",
            in_flight: options.in_flight,
            nodes: both,
        },
        Phase {
            name: "REST, one node",
            in_flight: options.in_flight,
            nodes: 1,
        },
        Phase {
            name: "REST, alone",
            in_flight: 1,
            nodes: 1,
        },
    ];
    let watch = Watch::of(cluster).await?;
    let pgbench = if options.no_peers {
        None
    } else {
        Some(Pgbench::prepare(cluster, PAYLOAD_BYTES).await?)
    };
    let (mut rounds, mut faults, mut checked) = (Vec::new(), Faults::default(), 0);
    for n in 1..=options.rounds {
        say(format!("send: round {n} of {}", options.rounds));
        let mut round = Round {
            found: Vec::new(),
            peers: Vec::new(),
        };
        for phase in phases {
            fixtures::renew(cluster.node(0), pairs).await?;
            watch.quiet().await;
            let driven = drive(cluster, &watch, pairs, phase, options.seconds).await?;
            checked += driven.acked.iter().map(Vec::len).sum::<usize>() as u64;
            faults.add(&verify(cluster, pairs, &driven).await?);
            round.found.push(driven.found);
        }
        for peer in [Peer::Batch, Peer::Single, Peer::Alone] {
            if let Some(pgbench) = &pgbench {
                watch.quiet().await;
                let before = watch.now();
                let speed = pgbench.run(peer, options.seconds).await?;
                let others = watch.now().since(&before).others_percent();
                round.peers.push(Compared {
                    peer,
                    speed,
                    others,
                });
            }
        }
        rounds.push(round);
    }
    let details = json!({
        "payload_bytes": PAYLOAD_BYTES, "pairs": pairs.len(), "in_flight": options.in_flight, "seconds": options.seconds,
        "rounds": rounds,
    });
    let mut notes =
        vec!["Medians of the rounds. CPU: µs of processor time per message.".to_owned()];
    notes.extend(cpu::remark(disturbance(&rounds)));
    let mut tables = vec![our_table(&rounds, both)];
    if pgbench.is_some() {
        tables.push(peer_table(&rounds));
    }
    Ok(Report {
        scenario: "send",
        tables,
        ratios: ratios(&rounds),
        notes,
        details,
        faults,
        checked,
        p99_ms: None,
    })
}

/// The findings of a phase, and the messages that must be there now.
pub struct Driven {
    pub found: Found,
    /// By pair.
    pub acked: Vec<Vec<Acked>>,
    pub failed: Vec<u64>,
}

impl Driven {
    /// Adds the messages that another run left there.
    pub fn join(&mut self, other: Driven) {
        self.acked
            .iter_mut()
            .zip(other.acked)
            .for_each(|(own, more)| own.extend(more));
        self.failed
            .iter_mut()
            .zip(other.failed)
            .for_each(|(own, more)| *own += more);
    }
}

/// Keeps `in_flight` sends in progress for the warm-up and the measured time.
pub async fn drive(
    cluster: &Cluster,
    watch: &Watch,
    pairs: &[Pair],
    phase: Phase,
    seconds: u64,
) -> Result<Driven> {
    let mut driven = drive_in_turns(
        &[(cluster, watch)],
        pairs,
        phase,
        Duration::from_secs(seconds),
        1,
    )
    .await?;
    driven.pop().ok_or_else(|| "nothing was driven".into())
}

/// Drives several clusters in turns of equal length. Changes of the machine from one second to the
/// next then affect all of them equally.
pub async fn drive_in_turns(
    targets: &[(&Cluster, &Watch)],
    pairs: &[Pair],
    phase: Phase,
    turn: Duration,
    turns: u32,
) -> Result<Vec<Driven>> {
    let (ids, start) = (Ids::new(), Instant::now() + WARM_UP);
    let (mut workers, mut before) = (Vec::new(), Vec::new());
    for (target, (cluster, _)) in targets.iter().enumerate() {
        before.push(batches(cluster).await?);
        for n in 0..phase.in_flight {
            let pair = n % pairs.len();
            let node = cluster.node(n % phase.nodes);
            let sender = Sender::open(node, &pairs[pair], PAYLOAD_BYTES).await?;
            let turns = Turns {
                start,
                turn,
                turns,
                of: targets.len(),
                own: target,
            };
            let worker = work(sender, ids, target * phase.in_flight + n, turns);
            workers.push((target, pair, tokio::spawn(worker)));
        }
    }
    let mut used: Vec<Vec<Used>> = targets.iter().map(|_| Vec::new()).collect();
    let all = Turns {
        start,
        turn,
        turns,
        of: targets.len(),
        own: 0,
    };
    for (from, target) in all.list() {
        sleep_until(from + all.settling()).await;
        let then = targets[target].1.now();
        sleep_until(from + turn).await;
        used[target].push(targets[target].1.now().since(&then));
    }
    let fresh = || {
        (
            Latencies::new(),
            vec![Vec::new(); pairs.len()],
            vec![0; pairs.len()],
        )
    };
    let mut worked: Vec<_> = targets.iter().map(|_| fresh()).collect();
    for (target, pair, worker) in workers {
        let one = worker.await?;
        worked[target].0.add(&one.latencies);
        worked[target].1[pair].extend(one.acked);
        worked[target].2[pair] += one.failed;
    }
    let mut driven = Vec::new();
    let measured = (turn - 2 * all.settling()).as_secs_f64() * f64::from(turns);
    for ((((cluster, _), before), used), (latencies, acked, failed)) in
        targets.iter().zip(before).zip(used).zip(worked)
    {
        let after = batches(cluster).await?;
        let transactions = (after.0 - before.0).max(1.0);
        let answer = latencies.quantiles();
        let found = Found {
            phase: phase.name,
            rate: answer.count as f64 / measured,
            messages: answer.count,
            answer,
            cpu: used
                .into_iter()
                .reduce(|sum, one| sum.and(&one))
                .ok_or("no turns")?,
            batch: (after.1 - before.1) / transactions,
            commit_ms: (after.2 - before.2) / transactions * 1000.0,
        };
        driven.push(Driven {
            found,
            acked,
            failed,
        });
    }
    Ok(driven)
}

/// The schedule of turns.
#[derive(Clone, Copy)]
struct Turns {
    start: Instant,
    turn: Duration,
    turns: u32,
    of: usize,
    own: usize,
}

impl Turns {
    /// All turns: the start of each, and its cluster. The first place rotates, too.
    fn list(self) -> impl Iterator<Item = (Instant, usize)> {
        let (n, of) = (self.turns as usize * self.of, self.of);
        (0..n).map(move |n| {
            let place = n % of;
            let whose = if n / of % 2 == 0 {
                place
            } else {
                of - 1 - place
            };
            (
                self.start + self.turn * u32::try_from(n).unwrap_or(u32::MAX),
                whose,
            )
        })
    }

    /// The part at the beginning of a turn that is not counted. As long before its end nobody
    /// sends, so that the next turn finds the machine free. A single cluster has the warm-up for
    /// that.
    fn settling(self) -> Duration {
        if self.of > 1 {
            self.turn / 8
        } else {
            Duration::ZERO
        }
    }
}

struct Worked {
    latencies: Latencies,
    acked: Vec<Acked>,
    failed: u64,
}

/// Sends one message after the other during its turns. Those answered in the measured time count.
async fn work(mut sender: Sender, ids: Ids, who: usize, turns: Turns) -> Worked {
    let mut worked = Worked {
        latencies: Latencies::new(),
        acked: Vec::new(),
        failed: 0,
    };
    let mut own = turns
        .list()
        .filter(|(_, whose)| *whose == turns.own)
        .map(|(from, _)| from)
        .peekable();
    for n in 0.. {
        let began = Instant::now();
        while own
            .peek()
            .is_some_and(|from| began >= *from + turns.turn - turns.settling())
        {
            own.next();
        }
        let Some(from) = own.peek().copied() else {
            break;
        };
        if began < from && turns.of > 1 {
            sleep_until(from).await;
            continue;
        }
        match sender.send(ids.id(who, n)).await {
            Ok(acked) => {
                let now = Instant::now();
                worked.acked.push(acked);
                let counts = if turns.of > 1 {
                    began >= from + turns.settling()
                } else {
                    now >= from && now < from + turns.turn
                };
                if counts {
                    worked.latencies.record(now - began);
                }
            }
            Err(failure) => {
                if worked.failed == 0 {
                    warn(format!("a send failed: {failure}"));
                }
                worked.failed += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    worked
}

/// The number of transactions, of their messages, and their seconds so far, over all nodes.
pub async fn batches(cluster: &Cluster) -> Result<(f64, f64, f64)> {
    let mut total = (0.0, 0.0, 0.0);
    for node in &cluster.nodes {
        let metrics = node.metrics().await?;
        total.0 += metrics.sum("send_batch_messages_count");
        total.1 += metrics.sum("send_batch_messages_sum");
        total.2 += metrics.sum("send_commit_seconds_sum");
    }
    Ok(total)
}

/// Makes every agent read its inbox, and compares.
pub async fn verify(cluster: &Cluster, pairs: &mut [Pair], driven: &Driven) -> Result<Faults> {
    let pairs = pairs
        .iter_mut()
        .zip(&driven.acked)
        .zip(&driven.failed)
        .enumerate();
    let readings = stream::iter(pairs).map(async |(n, ((pair, acked), failed))| {
        let mut socket = Socket::open(cluster.node(n), pair).await?;
        socket.catch_up(pair).await?;
        socket.close().await;
        Ok(pair.reader.judge(acked, *failed))
    });
    let mut faults = Faults::default();
    let mut readings = std::pin::pin!(readings.buffer_unordered(8));
    while let Some(found) = readings
        .try_next()
        .await
        .map_err(|failure: crate::Failure| failure)?
    {
        faults.add(&found);
    }
    Ok(faults)
}

fn our_table(rounds: &[Round], nodes: usize) -> Vec<Vec<String>> {
    let mut heading: Vec<String> = ["", "msg/s", "p50 ms", "p99 ms", "batch", "commit ms"]
        .map(str::to_owned)
        .into();
    heading.extend((1..=nodes).map(|n| format!("node {n} CPU")));
    heading.extend(["Postgres", "Redis", "client", "others %"].map(str::to_owned));
    let mut table = vec![heading];
    for n in 0..rounds.first().map_or(0, |round| round.found.len()) {
        let of = |value: &dyn Fn(&Found) -> f64| {
            median(rounds.iter().map(|round| value(&round.found[n])))
        };
        let per_message = |seconds: &dyn Fn(&Used) -> f64| {
            format!(
                "{:.0}",
                of(&|found| seconds(&found.cpu) * 1e6 / found.messages.max(1) as f64)
            )
        };
        let mut row = vec![
            rounds[0].found[n].phase.to_owned(),
            format!("{:.0}", of(&|found| found.rate)),
            format!("{:.2}", of(&|found| found.answer.p50 / 1000.0)),
            format!("{:.2}", of(&|found| found.answer.p99 / 1000.0)),
            format!("{:.1}", of(&|found| found.batch)),
            format!("{:.2}", of(&|found| found.commit_ms)),
        ];
        row.extend((0..nodes).map(|node| per_message(&|used| used.nodes[node])));
        row.extend([
            per_message(&|used| used.postgres),
            per_message(&|used| used.redis),
            per_message(&|used| used.client),
            format!("{:.0}", of(&|found| found.cpu.others_percent())),
        ]);
        table.push(row);
    }
    table
}

/// The highest percentage of the machine that other programs used in any phase.
fn disturbance(rounds: &[Round]) -> f64 {
    let ours = rounds
        .iter()
        .flat_map(|round| &round.found)
        .map(|found| found.cpu.others_percent());
    let peers = rounds
        .iter()
        .flat_map(|round| &round.peers)
        .map(|compared| compared.others);
    ours.chain(peers).fold(0.0, f64::max)
}

fn peer_speed(rounds: &[Round], peer: Peer, value: impl Fn(&Speed) -> f64) -> f64 {
    let speeds = rounds
        .iter()
        .flat_map(|round| &round.peers)
        .filter(|compared| compared.peer == peer);
    median(speeds.map(|compared| value(&compared.speed)))
}

fn peer_table(rounds: &[Round]) -> Vec<Vec<String>> {
    let mut table: Vec<Vec<String>> = vec![
        ["pgbench", "rows/s", "p50 ms", "mean ms"]
            .map(str::to_owned)
            .into(),
    ];
    let names = [
        (
            Peer::Batch,
            "64 messages per statement, 2 clients",
            pgbench::BATCH,
        ),
        (Peer::Single, "1 message per statement, 32 clients", 1),
        (Peer::Alone, "1 message per statement, 1 client", 1),
    ];
    for (peer, name, rows) in names {
        let p50 = peer_speed(rounds, peer, |speed| speed.p50.unwrap_or_default() / 1000.0);
        table.push(vec![
            name.to_owned(),
            format!(
                "{:.0}",
                peer_speed(rounds, peer, |speed| speed.tps * rows as f64)
            ),
            if p50 > 0.0 {
                format!("{p50:.2}")
            } else {
                "–".to_owned()
            },
            format!(
                "{:.2}",
                peer_speed(rounds, peer, |speed| speed.mean / 1000.0)
            ),
        ]);
    }
    table
}

fn ratios(rounds: &[Round]) -> Vec<Ratio> {
    let ours = |n: usize, value: &dyn Fn(&Found) -> f64| {
        median(rounds.iter().map(|round| value(&round.found[n])))
    };
    let rate = ours(0, &|found| found.rate);
    let one_node = ours(1, &|found| found.rate);
    let alone = ours(2, &|found| found.answer.p50);
    let mut ratios = vec![Ratio {
        what: "two nodes / one node, msg/s",
        value: rate / one_node,
        goal: Goal::AtLeast(0.9, 0.97),
    }];
    if rounds.iter().any(|round| !round.peers.is_empty()) {
        let batch = peer_speed(rounds, Peer::Batch, |speed| {
            speed.tps * pgbench::BATCH as f64
        });
        let single = peer_speed(rounds, Peer::Single, |speed| speed.tps);
        let single_p50 = peer_speed(rounds, Peer::Alone, |speed| speed.p50.unwrap_or(speed.mean));
        ratios.extend([
            Ratio {
                what: "REST, two nodes / pgbench batch 64",
                value: rate / batch,
                goal: Goal::AtLeast(0.4, 0.7),
            },
            Ratio {
                what: "REST, two nodes / pgbench 32 clients",
                value: rate / single,
                goal: Goal::AtLeast(1.1, 2.0),
            },
            Ratio {
                what: "REST, one node / pgbench batch 64",
                value: one_node / batch,
                goal: Goal::AtLeast(0.4, 0.7),
            },
            Ratio {
                what: "REST, one node / pgbench 32 clients",
                value: one_node / single,
                goal: Goal::AtLeast(1.1, 2.0),
            },
            Ratio {
                what: "REST alone p50 / pgbench alone p50",
                value: alone / single_p50,
                goal: Goal::AtMost(3.0, 2.0),
            },
        ]);
    }
    ratios
}
