//! `fanout`: one send into a group whose members all listen, with one device on each of two nodes.
//! It measures the time until the last device has it, and the deliveries per second.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::json;
use tokio::{
    sync::Notify,
    task::{LocalSet, spawn_local},
};

use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{self, Used, Watch},
    crowd::{Crowd, Line, event},
    delivery::Faults,
    peers::{self, Kind, Peer},
    plain::Plain,
    report::{Goal, Ratio, Report, say},
    stats::{Latencies, Quantiles, median},
};

const PAYLOAD_BYTES: usize = 200;
/// The number of single sends, each of which waits for all arrivals.
const SINGLE: usize = 50;
/// The longest wait for acked messages that have not arrived.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The findings of one round; times in µs.
#[derive(Serialize)]
struct Found {
    who: &'static str,
    /// From the send to each arrival, of sends one after the other.
    each: Quantiles,
    /// From the send to the last arrival.
    last: Quantiles,
    /// Deliveries per second with several concurrent sends.
    rate: f64,
    cpu: Used,
    deliveries: u64,
}

/// The arrivals at all sockets of a round.
#[derive(Default)]
struct Heard {
    sent_at: Option<Instant>,
    each: Option<Latencies>,
    arrived: u64,
    gaps: u64,
    last_at: Option<Instant>,
    awaited: u64,
}

#[derive(Clone, Default)]
struct Ear {
    heard: Rc<RefCell<Heard>>,
    bell: Rc<Notify>,
}

impl Ear {
    fn note(&self, gap: bool) {
        let mut heard = self.heard.borrow_mut();
        let now = Instant::now();
        heard.arrived += 1;
        heard.gaps += u64::from(gap);
        heard.last_at = Some(now);
        if let (Some(at), Some(each)) = (heard.sent_at, &mut heard.each) {
            each.record(now - at);
        }
        if heard.arrived == heard.awaited {
            self.bell.notify_one();
        }
    }

    /// Waits for `awaited` arrivals, up to a limit. Returns the number of missing ones.
    async fn all(&self, awaited: u64) -> u64 {
        self.heard.borrow_mut().awaited = awaited;
        let missing = || awaited.saturating_sub(self.heard.borrow().arrived);
        let complete = async {
            while missing() > 0 {
                self.bell.notified().await;
            }
        };
        tokio::time::timeout(TIMEOUT, complete).await.ok();
        missing()
    }

    /// Waits for `awaited` arrivals and fails if any is missing.
    async fn all_of_theirs(&self, awaited: u64) -> Result<()> {
        match self.all(awaited).await {
            0 => Ok(()),
            lost => Err(format!("of {awaited} deliveries {lost} did not arrive").into()),
        }
    }
}

/// Reads until the socket ends.
async fn listen(mut line: Line, mut seq: i64, ear: Ear) {
    while let Ok(text) = line.hear().await {
        if let Some(n) = event(&text) {
            seq += 1;
            ear.note(n != seq);
        }
    }
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    LocalSet::new().run_until(measure(cluster, options)).await
}

async fn measure(cluster: &Cluster, options: &Options) -> Result<Report> {
    let plain = Plain::start(cluster, 2).await?;
    let members = options.sockets_or(1000) / 2;
    let (mut rounds, mut peers) = (Vec::new(), peers::Found::new());
    let (mut faults, mut checked) = (Faults::default(), 0);
    for n in 1..=options.rounds {
        say(format!("fanout: round {n} of {}", options.rounds));
        let (found, wrong) = Box::pin(ours(&plain.cluster, members, options)).await?;
        checked += found.deliveries;
        faults.add(&wrong);
        rounds.push(found);
        peers::measure(cluster, options, &mut peers, async |peer| {
            theirs(peer, members, options).await
        })
        .await;
    }
    let mut notes = vec![format!(
        "{} sockets on two nodes without TLS; times in µs from the send. Medians of the rounds; CPU in µs per delivery.",
        members * 2
    )];
    notes.extend(peers::remark(&peers));
    let all = rounds.iter().chain(peers.values().flatten());
    notes.extend(cpu::remark(
        all.map(|found| found.cpu.others_percent())
            .fold(0.0, f64::max),
    ));
    let rate = median(rounds.iter().map(|found| found.rate));
    let ratios = peers.iter().map(|(kind, found)| {
        let (what, goal) = match kind {
            Kind::Floor => ("deliveries/s / the floor's", Goal::None),
            Kind::SocketIo => ("deliveries/s / Socket.IO's", Goal::AtLeast(2.0, 4.0)),
        };
        Ratio {
            what,
            value: rate / median(found.iter().map(|found| found.rate)),
            goal,
        }
    });
    let ratios = ratios.collect();
    let details = json!({ "payload_bytes": PAYLOAD_BYTES, "sockets": members * 2, "rounds": rounds, "peers": peers });
    let tables = vec![table([&rounds].into_iter().chain(peers.values()))];
    Ok(Report {
        scenario: "fanout",
        tables,
        ratios,
        notes,
        details,
        faults,
        checked,
        p99_ms: None,
    })
}

async fn ours(cluster: &Cluster, members: usize, options: &Options) -> Result<(Found, Faults)> {
    let crowd = Crowd::make(cluster, members, 2).await?;
    let group = crowd.group(0..members).await?;
    let ear = Ear::default();
    let mut listeners = Vec::new();
    for user in 0..members {
        for device in 0..2 {
            let mut line = crowd
                .connect(cluster.node(device), user, device, None)
                .await?;
            line.caught_up().await?;
            listeners.push(spawn_local(listen(line, 0, ear.clone())));
        }
    }
    // The nodes complete their subscriptions shortly after the last socket is up.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let sockets = listeners.len() as u64;
    let watch = Arc::new(Watch::of(cluster).await?);
    let mut last = Latencies::new();
    let mut sender = crowd
        .sender(cluster.node(0), 0, &group, PAYLOAD_BYTES)
        .await?;
    ear.heard.borrow_mut().each = Some(Latencies::new());
    let mut sent = 0;
    for _ in 0..SINGLE {
        let at = Instant::now();
        ear.heard.borrow_mut().sent_at = Some(at);
        sender.send().await?;
        sent += 1;
        ear.all(sent * sockets).await;
        last.record(at.elapsed());
    }
    let each = ear
        .heard
        .borrow_mut()
        .each
        .take()
        .unwrap_or_else(Latencies::new);

    let before = watch.now();
    let began = Instant::now();
    let until = began + Duration::from_secs(options.seconds);
    let mut senders = Vec::new();
    for n in 0..options.in_flight.min(8) {
        let mut sender = crowd
            .sender(cluster.node(n), n % members, &group, PAYLOAD_BYTES)
            .await?;
        senders.push(spawn_local(async move {
            let (mut acked, mut failed) = (0, 0);
            while Instant::now() < until {
                match sender.send().await {
                    Ok(_) => acked += 1,
                    Err(_) => failed += 1,
                }
            }
            (acked, failed)
        }));
    }
    let (mut acked, mut failed) = (0, 0);
    for sender in senders {
        let (yes, no) = sender.await?;
        acked += yes;
        failed += no;
    }
    sent += acked;
    let lost = ear.all(sent * sockets).await;
    let cpu = watch.now().since(&before);
    let heard = ear.heard.borrow();
    let span = heard.last_at.map_or(Duration::ZERO, |at| at - began);
    let faults = Faults {
        failed,
        lost,
        inbox_gaps: heard.gaps,
        ..Faults::default()
    };
    listeners.iter().for_each(tokio::task::JoinHandle::abort);
    let deliveries = acked * sockets - lost;
    let rate = deliveries as f64 / span.as_secs_f64();
    let found = Found {
        who: "blindpipe",
        each: each.quantiles(),
        last: last.quantiles(),
        rate,
        cpu,
        deliveries,
    };
    Ok((found, faults))
}

/// Measures a peer, which neither stores nor answers sends.
async fn theirs(peer: &Peer, members: usize, options: &Options) -> Result<Found> {
    let ear = Ear::default();
    let mut listeners = Vec::new();
    for n in 0..members * 2 {
        let mut line = peer.connect(n).await?;
        let ear = ear.clone();
        listeners.push(spawn_local(async move {
            while line.hear().await.is_ok() {
                ear.note(false);
            }
        }));
    }
    let sockets = listeners.len() as u64;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut sender = peer.connect_silently(0).await?;
    let message = "x".repeat(PAYLOAD_BYTES);
    let mut last = Latencies::new();
    ear.heard.borrow_mut().each = Some(Latencies::new());
    let mut sent = 0;
    for _ in 0..SINGLE {
        let at = Instant::now();
        ear.heard.borrow_mut().sent_at = Some(at);
        sender.say(&message).await?;
        sent += 1;
        ear.all_of_theirs(sent * sockets).await?;
        last.record(at.elapsed());
    }
    let each = ear
        .heard
        .borrow_mut()
        .each
        .take()
        .unwrap_or_else(Latencies::new);
    let watch = peer.watch().await?;
    let before = watch.now();
    let began = Instant::now();
    let first = sent;
    // No answer ends a send. So many are in progress that the next one waits for the arrivals of an
    // earlier one.
    while began.elapsed() < Duration::from_secs(options.seconds) {
        sender.say(&message).await?;
        sent += 1;
        ear.all_of_theirs(sent.saturating_sub(8) * sockets).await?;
    }
    ear.all_of_theirs(sent * sockets).await?;
    let cpu = watch.now().since(&before);
    let span = ear
        .heard
        .borrow()
        .last_at
        .map_or(Duration::ZERO, |at| at - began);
    listeners.iter().for_each(tokio::task::JoinHandle::abort);
    let deliveries = (sent - first) * sockets;
    let rate = deliveries as f64 / span.as_secs_f64();
    Ok(Found {
        who: peer.kind.name(),
        each: each.quantiles(),
        last: last.quantiles(),
        rate,
        cpu,
        deliveries,
    })
}

fn table<'a>(sides: impl Iterator<Item = &'a Vec<Found>>) -> Vec<Vec<String>> {
    let heading = [
        "",
        "deliveries/s",
        "each p50",
        "p99",
        "last p50",
        "p99",
        "node 1 CPU",
        "node 2",
        "Postgres",
        "Redis",
        "client",
    ];
    let mut table = vec![heading.map(str::to_owned).into()];
    for rounds in sides.filter(|rounds| !rounds.is_empty()) {
        let of = |value: &dyn Fn(&Found) -> f64| median(rounds.iter().map(value));
        let whole = |value: &dyn Fn(&Found) -> f64| format!("{:.0}", of(value));
        let cpu = |seconds: &dyn Fn(&Used) -> f64| {
            format!(
                "{:.2}",
                of(&|found| seconds(&found.cpu) * 1e6 / found.deliveries.max(1) as f64)
            )
        };
        table.push(vec![
            rounds[0].who.to_owned(),
            whole(&|found| found.rate),
            whole(&|found| found.each.p50),
            whole(&|found| found.each.p99),
            whole(&|found| found.last.p50),
            whole(&|found| found.last.p99),
            cpu(&|used| used.nodes[0]),
            cpu(&|used| used.nodes[1]),
            cpu(&|used| used.postgres),
            cpu(&|used| used.redis),
            cpu(&|used| used.client),
        ]);
    }
    table
}
