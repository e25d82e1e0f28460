//! `hop`: the time from send to receive at a fixed rate, with the receiver's socket on the sender's
//! node and on another.
//!
//! An open loop: messages are due at fixed moments. Every time is measured from the due moment, so
//! a stall of a node counts for all messages that it delays.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, spawn_blocking},
};

use super::sender::{Ids, Sender};
use crate::{
    Options, Result,
    cluster::{Cluster, Node},
    cpu::{self, Used, Watch},
    delivery::{Acked, Faults, Reader},
    fixtures::{self, Pair},
    pacer::{Pacer, Schedule},
    peers::{self, Kind, Peer},
    report::{Goal, Ratio, Report, say, warn},
    socket::{Heard, Socket},
    stats::{Latencies, Quantiles, median},
};

const PAYLOAD_BYTES: usize = 200;
/// Seconds at the beginning that do not count.
const WARM_UP: u64 = 1;
/// The longest wait for acked messages that have not arrived.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The findings of one phase of one round; times in µs from a message's due moment.
#[derive(Serialize)]
struct Found {
    phase: &'static str,
    /// To the agent's socket.
    receive: Quantiles,
    /// To the sender's 201.
    answer: Quantiles,
    /// To the start of the send: this program's own part in the other two.
    late: Quantiles,
    cpu: Used,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let watch = Arc::new(Watch::of(cluster).await?);
    let (mut rounds, mut peers) = (Vec::new(), peers::Found::new());
    let (mut faults, mut checked) = (Faults::default(), 0);
    for n in 1..=options.rounds {
        say(format!("hop: round {n} of {}", options.rounds));
        let mut round = Vec::new();
        for (name, listening) in [("same node", 0), ("across nodes", 1)] {
            fixtures::renew(cluster.node(0), pairs).await?;
            watch.quiet().await;
            let phase = Phase {
                sending: cluster.node(0),
                watch: &watch,
                options,
                ids: Ids::new(),
                name,
            };
            let (found, wrong, messages) =
                Box::pin(phase.run(pairs, cluster.node(listening))).await?;
            faults.add(&wrong);
            checked += messages;
            round.push(found);
        }
        rounds.push(round);
        peers::measure(cluster, options, &mut peers, async |peer| {
            watch.quiet().await;
            Ok([
                theirs(peer, 0, options).await?,
                theirs(peer, 1, options).await?,
            ])
        })
        .await;
    }
    let details = json!({
        "payload_bytes": PAYLOAD_BYTES, "pairs": pairs.len(), "rate": options.rate, "seconds": options.seconds, "rounds": rounds,
        "peers": peers,
    });
    let mut notes = vec![
        "Medians of the rounds; times in µs from the moment each message was due. `late` is this program's own part. \
         CPU: µs of processor time per message."
            .to_owned(),
    ];
    let found = rounds.iter().flatten();
    let disturbance = found
        .map(|found| found.cpu.others_percent())
        .fold(0.0, f64::max);
    notes.extend(cpu::remark(disturbance));
    let mut tables = vec![table(&rounds, cluster.nodes.len(), options)];
    if !peers.is_empty() {
        notes.push("Peers store nothing, answer nothing and speak no TLS here.".to_owned());
        tables.push(peer_table(&peers));
    }
    notes.extend(peers::remark(&peers));
    let ratios = ratios(&rounds, &peers);
    Ok(Report {
        scenario: "hop",
        tables,
        ratios,
        notes,
        details,
        faults,
        checked,
        p99_ms: Some(receive_p99_ms(&rounds)),
    })
}

/// Runs the scenario against a release elsewhere: from its first base URL to its last.
pub async fn run_release(nodes: &[Node], pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let watch = Arc::new(Watch::alone(Vec::new()));
    let (mut rounds, mut faults, mut checked) = (Vec::new(), Faults::default(), 0);
    let listening = nodes.last().ok_or("a base URL is needed")?;
    for n in 1..=options.rounds {
        say(format!("release: round {n} of {}", options.rounds));
        fixtures::renew(&nodes[0], pairs).await?;
        let phase = Phase {
            sending: &nodes[0],
            watch: &watch,
            options,
            ids: Ids::new(),
            name: "release",
        };
        let (found, wrong, messages) = Box::pin(phase.run(pairs, listening)).await?;
        faults.add(&wrong);
        checked += messages;
        rounds.push(vec![found]);
    }
    Ok(Report {
        scenario: "release",
        tables: vec![table(&rounds, 0, options)],
        ratios: Vec::new(),
        notes: vec![
            "Medians of the rounds; times in µs from the moment each message was due, over the network. The release's \
             processes and databases are out of reach: their processor time, and all comparisons, are left out."
                .to_owned(),
        ],
        details: json!({
            "payload_bytes": PAYLOAD_BYTES, "pairs": pairs.len(), "rate": options.rate,
            "seconds": options.seconds, "rounds": rounds,
        }),
        faults,
        checked,
        p99_ms: Some(receive_p99_ms(&rounds)),
    })
}

/// The p99 of a message's way to its reader in the slower phase, in milliseconds: the median of the
/// rounds.
fn receive_p99_ms(rounds: &[Vec<Found>]) -> f64 {
    let phases = 0..rounds.first().map_or(0, Vec::len);
    let p99 = |phase: usize| median(rounds.iter().map(|round| round[phase].receive.p99));
    phases.map(p99).fold(0.0, f64::max) / 1000.0
}

/// Measures a peer at the same rate, from a socket of its first node to one of another.
async fn theirs(peer: &Peer, listening: usize, options: &Options) -> Result<Quantiles> {
    let (mut sender, mut listener) = (
        peer.connect_silently(0).await?,
        peer.connect(listening).await?,
    );
    tokio::time::sleep(Duration::from_millis(500)).await;
    let first = WARM_UP * options.rate;
    let count = first + options.seconds * options.rate;
    let mut pacer = Pacer::start(options.rate)?;
    let schedule = pacer.schedule();
    let say = async {
        for _ in 0..count {
            let n = pacer.next().await?;
            sender.say(&format!("{n:0PAYLOAD_BYTES$}")).await?;
        }
        Ok::<_, crate::Failure>(())
    };
    let mut latencies = Latencies::new();
    let hear = async {
        for _ in 0..count {
            let text = listener.hear().await?;
            let now = Instant::now();
            let n = text.parse()?;
            if n >= first {
                latencies.record(now.saturating_duration_since(schedule.moment(n)));
            }
        }
        Ok::<_, crate::Failure>(())
    };
    let patience = Duration::from_secs(WARM_UP + options.seconds) + TIMEOUT;
    let (said, heard) = futures_util::join!(say, tokio::time::timeout(patience, hear));
    said?;
    heard??;
    Ok(latencies.quantiles())
}

/// The findings of a round on the same node and across nodes.
type Theirs = peers::Found<[Quantiles; 2]>;

fn peer_table(peers: &Theirs) -> Vec<Vec<String>> {
    let mut table = vec![
        ["", "receive p50", "p99", "p99.9"]
            .map(str::to_owned)
            .into(),
    ];
    for (kind, rounds) in peers {
        for (n, place) in ["same node", "across nodes"].into_iter().enumerate() {
            let of = |value: &dyn Fn(&Quantiles) -> f64| {
                format!("{:.0}", median(rounds.iter().map(|round| value(&round[n]))))
            };
            let name = format!("{}, {place}", kind.name());
            table.push(vec![
                name,
                of(&|one| one.p50),
                of(&|one| one.p99),
                of(&|one| one.p999),
            ]);
        }
    }
    table
}

struct Phase<'a> {
    sending: &'a Node,
    watch: &'a Arc<Watch>,
    options: &'a Options,
    ids: Ids,
    name: &'static str,
}

impl Phase<'_> {
    /// Sends on one node and listens on `listening`.
    async fn run(&self, pairs: &mut [Pair], listening: &Node) -> Result<(Found, Faults, u64)> {
        let sockets = stream::iter(pairs.iter_mut()).map(async |pair| {
            let mut socket = Socket::open(listening, pair).await?;
            socket.catch_up(pair).await?;
            Ok::<_, crate::Failure>(socket)
        });
        let sockets: Vec<Socket> = sockets.buffered(8).try_collect().await?;
        let mut senders = Vec::new();
        for pair in pairs.iter() {
            senders.push(Sender::open(self.sending, pair, PAYLOAD_BYTES).await?);
        }
        let first = WARM_UP * self.options.rate;
        let count = first + self.options.seconds * self.options.rate;
        let (stop, stopped) = watch::channel(false);
        let arrived = Arc::new(AtomicU64::new(0));

        let mut pacer = Pacer::start(self.options.rate)?;
        let plan = Plan {
            ids: self.ids,
            schedule: pacer.schedule(),
            first,
        };
        let readers = pairs
            .iter_mut()
            .map(|pair| std::mem::take(&mut pair.reader));
        let listeners = readers.zip(sockets).map(|(reader, socket)| {
            let listener = Listener {
                reader,
                latencies: Latencies::new(),
                arrived: arrived.clone(),
            };
            tokio::spawn(listener.run(socket, plan, stopped.clone()))
        });
        let listeners: Vec<JoinHandle<Result<Listener>>> = listeners.collect();
        let (lanes, senders): (Vec<_>, Vec<_>) = senders
            .into_iter()
            .enumerate()
            .map(|(who, sender)| {
                let (lane, due) = mpsc::unbounded_channel();
                (lane, tokio::spawn(work(sender, who, due, plan)))
            })
            .unzip();

        let mut late = Latencies::new();
        let mut before = None;
        for _ in 0..count {
            let n = pacer.next().await?;
            if n == first {
                // Reading /proc takes longer than a message, so it must not happen on the measuring
                // thread.
                let watch = self.watch.clone();
                before = Some(spawn_blocking(move || watch.now()));
            }
            if n >= first {
                late.record(plan.schedule.moment(n).elapsed());
            }
            lanes[usize::try_from(n)? % lanes.len()]
                .send(n)
                .map_err(|_| "a sender is gone")?;
        }
        let watch = self.watch.clone();
        let after = spawn_blocking(move || watch.now()).await?;
        let before = before.ok_or("nothing was measured")?.await?;
        drop(lanes);

        let mut answer = Latencies::new();
        let mut sent = Vec::new();
        for sender in senders {
            let worked = sender.await?;
            answer.add(&worked.latencies);
            sent.push((worked.acked, worked.failed));
        }
        let acked: u64 = sent.iter().map(|(acked, _)| acked.len() as u64).sum();
        let deadline = Instant::now() + TIMEOUT;
        while arrived.load(Ordering::Relaxed) < acked && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.send_replace(true);
        let (mut receive, mut faults) = (Latencies::new(), Faults::default());
        for ((pair, listener), (acked, failed)) in pairs.iter_mut().zip(listeners).zip(&sent) {
            let listener = listener.await??;
            receive.add(&listener.latencies);
            pair.reader = listener.reader;
            faults.add(&pair.reader.judge(acked, *failed));
        }
        let found = Found {
            phase: self.name,
            receive: receive.quantiles(),
            answer: answer.quantiles(),
            late: late.quantiles(),
            cpu: after.since(&before),
        };
        Ok((found, faults, acked))
    }
}

/// The shared plan of senders and listeners.
#[derive(Clone, Copy)]
struct Plan {
    ids: Ids,
    schedule: Schedule,
    /// The number of the first message that counts.
    first: u64,
}

struct Listener {
    reader: Reader,
    latencies: Latencies,
    arrived: Arc<AtomicU64>,
}

impl Listener {
    async fn run(
        mut self,
        mut socket: Socket,
        plan: Plan,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<Self> {
        loop {
            let heard = tokio::select! {
                heard = socket.hear() => heard?,
                _ = stopped.changed() => break,
            };
            let now = Instant::now();
            let Heard::Event {
                cursor,
                arrival,
                client_message_id,
            } = heard
            else {
                continue;
            };
            if let Some(n) = client_message_id.and_then(|id| plan.ids.number(id)) {
                if n >= plan.first {
                    self.latencies
                        .record(now.saturating_duration_since(plan.schedule.moment(n)));
                }
                self.arrived.fetch_add(1, Ordering::Relaxed);
            }
            self.reader.note(arrival);
            self.reader.cursor = Some(cursor);
        }
        socket.close().await;
        Ok(self)
    }
}

struct Worked {
    latencies: Latencies,
    acked: Vec<Acked>,
    failed: u64,
}

/// Sends due messages one after the other. A user whose connection is behind delays the next
/// message, and that message's time shows the delay.
async fn work(
    mut sender: Sender,
    who: usize,
    mut due: mpsc::UnboundedReceiver<u64>,
    plan: Plan,
) -> Worked {
    let mut worked = Worked {
        latencies: Latencies::new(),
        acked: Vec::new(),
        failed: 0,
    };
    while let Some(n) = due.recv().await {
        match sender.send(plan.ids.id(who, n)).await {
            Ok(acked) => {
                if n >= plan.first {
                    worked.latencies.record(plan.schedule.moment(n).elapsed());
                }
                worked.acked.push(acked);
            }
            Err(failure) => {
                if worked.failed == 0 {
                    warn(format!("a send failed: {failure}"));
                }
                worked.failed += 1;
            }
        }
    }
    worked
}

fn table(rounds: &[Vec<Found>], nodes: usize, options: &Options) -> Vec<Vec<String>> {
    let name = format!("{}/s", options.rate);
    let mut heading: Vec<String> = [
        name.as_str(),
        "receive p50",
        "p99",
        "p99.9",
        "answer p50",
        "p99",
        "p99.9",
        "late p50",
        "p99",
    ]
    .map(str::to_owned)
    .into();
    heading.extend((1..=nodes).map(|n| format!("node {n} CPU")));
    if nodes > 0 {
        heading.extend(["Postgres", "Redis"].map(str::to_owned));
    }
    heading.extend(["client CPU", "others %"].map(str::to_owned));
    let mut table = vec![heading];
    for n in 0..rounds.first().map_or(0, Vec::len) {
        let of = |value: &dyn Fn(&Found) -> f64| {
            format!("{:.0}", median(rounds.iter().map(|round| value(&round[n]))))
        };
        let cpu = |seconds: &dyn Fn(&Used) -> f64| {
            of(&|found| seconds(&found.cpu) * 1e6 / found.answer.count.max(1) as f64)
        };
        let mut row = vec![rounds[0][n].phase.to_owned()];
        row.extend([
            of(&|found| found.receive.p50),
            of(&|found| found.receive.p99),
            of(&|found| found.receive.p999),
        ]);
        row.extend([
            of(&|found| found.answer.p50),
            of(&|found| found.answer.p99),
            of(&|found| found.answer.p999),
        ]);
        row.extend([of(&|found| found.late.p50), of(&|found| found.late.p99)]);
        row.extend((0..nodes).map(|node| cpu(&|used| used.nodes[node])));
        if nodes > 0 {
            row.extend([cpu(&|used| used.postgres), cpu(&|used| used.redis)]);
        }
        row.push(cpu(&|used| used.client));
        row.push(of(&|found| found.cpu.others_percent()));
        table.push(row);
    }
    table
}

fn ratios(rounds: &[Vec<Found>], peers: &Theirs) -> Vec<Ratio> {
    let of = |n: usize, value: &dyn Fn(&Found) -> f64| {
        median(rounds.iter().map(|round| value(&round[n])))
    };
    let theirs = |kind: Kind, value: &dyn Fn(&[Quantiles; 2]) -> f64| {
        peers
            .get(&kind)
            .map(|rounds| median(rounds.iter().map(value)))
    };
    let (same, answer) = (
        of(0, &|found| found.receive.p50),
        of(0, &|found| found.answer.p50),
    );
    let mut ratios = vec![Ratio {
        what: "across nodes / same node, receive p50",
        value: of(1, &|found| found.receive.p50) / same,
        goal: Goal::AtMost(2.3, 1.7),
    }];
    // Without the floor nothing is added to the answer's time, which makes the goal stricter.
    let (what, hop) = match theirs(Kind::Floor, &|round| round[0].p50) {
        Some(hop) => (
            "same node, receive p50 / (answer p50 + the floor's same-node hop p50)",
            hop,
        ),
        None => ("same node, receive p50 / answer p50", 0.0),
    };
    ratios.push(Ratio {
        what,
        value: same / (answer + hop),
        goal: Goal::AtMost(1.3, 1.1),
    });
    if let Some(theirs) = theirs(Kind::SocketIo, &|round| round[1].p99) {
        ratios.push(Ratio {
            what: "across nodes, receive p99 / Socket.IO's",
            value: of(1, &|found| found.receive.p99) / theirs,
            goal: Goal::AtMost(1.0, 0.3),
        });
    }
    ratios
}
