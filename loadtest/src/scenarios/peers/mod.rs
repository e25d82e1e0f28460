//! `peers`: durable sends of comparable systems, beside ours with the same clients, in turns.
//!
//! None of them does the same work. The table says what each has done when it answers.

mod nats;

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use self::nats::{Nats, Sync};
use super::{
    send::{self, Phase},
    sender::Ids,
};
use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{self, Watch, anonymous},
    delivery::Faults,
    fixtures::{self, Pair},
    report::{Goal, Ratio, Report, say, warn},
    stats::{Latencies, Quantiles, median},
};

const PAYLOAD_BYTES: usize = 1024;
const WARM_UP: Duration = Duration::from_secs(1);
const KIB_OF_A_MIB: f64 = 1024.0;

/// The systems, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum System {
    Ours,
    NatsSynced,
    Nats,
}

impl System {
    const ALL: [System; 3] = [System::Ours, System::NatsSynced, System::Nats];

    fn name(self) -> &'static str {
        match self {
            System::Ours => "Blindpipe, one node, TLS",
            System::NatsSynced => "NATS JetStream, sync_interval: always",
            System::Nats => "NATS JetStream",
        }
    }

    /// The work that is done on a message when its sender has the answer.
    fn promise(self) -> &'static str {
        match self {
            System::Ours => {
                "sender and members checked, limits charged, numbered, synced, in each member's inbox"
            }
            System::NatsSynced => "numbered, synced",
            System::Nats => "numbered, written; synced every two minutes",
        }
    }
}

/// The findings of a system in a round.
#[derive(Serialize)]
struct Found {
    system: System,
    /// Messages per second, with `in_flight` sends under way.
    rate: f64,
    /// Time of a lone send, in µs.
    alone: Quantiles,
    /// µs of the server's processors per message, with all that it needs.
    cpu: f64,
    /// MiB of anonymous memory of the server after that, without its database.
    memory: f64,
    others: f64,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let (mut found, mut faults, mut checked) = (Vec::new(), Faults::default(), 0);
    for n in 1..=options.rounds {
        for system in System::ALL {
            say(format!(
                "peers: round {n} of {}, {}",
                options.rounds,
                system.name()
            ));
            let one = match system {
                System::Ours => {
                    let (one, own_faults, own_checked) = ours(cluster, pairs, options).await?;
                    faults.add(&own_faults);
                    checked += own_checked;
                    Ok(one)
                }
                System::NatsSynced => of_nats(options, system, Sync::Always).await,
                System::Nats => of_nats(options, system, Sync::Default).await,
            };
            match one {
                Ok(one) => found.push(one),
                Err(failure) => warn(format!(
                    "Without {} in this round: {failure}.",
                    system.name()
                )),
            }
        }
    }
    let others = found.iter().map(|one| one.others).fold(0.0, f64::max);
    let mut notes = vec![format!(
        "{} sends in flight, then a lone one, {PAYLOAD_BYTES} bytes each. Medians of the rounds. CPU: µs of all processes of a system per message.",
        options.in_flight
    )];
    notes.extend(cpu::remark(others));
    Ok(Report {
        scenario: "peers",
        tables: vec![table(&found)],
        ratios: ratios(&found),
        notes,
        details: json!({ "payload_bytes": PAYLOAD_BYTES, "in_flight": options.in_flight,
            "seconds": options.seconds, "found": found }),
        faults,
        checked,
        p99_ms: None,
    })
}

async fn ours(
    cluster: &Cluster,
    pairs: &mut [Pair],
    options: &Options,
) -> Result<(Found, Faults, u64)> {
    let watch = Watch::of(cluster).await?;
    let (mut faults, mut checked) = (Faults::default(), 0);
    let mut phase = async |in_flight| {
        fixtures::renew(cluster.node(0), pairs).await?;
        watch.quiet().await;
        let phase = Phase {
            name: "REST",
            in_flight,
            nodes: 1,
        };
        let driven = send::drive(cluster, &watch, pairs, phase, options.seconds).await?;
        checked += driven.acked.iter().map(Vec::len).sum::<usize>() as u64;
        faults.add(&send::verify(cluster, pairs, &driven).await?);
        Result::Ok(driven.found)
    };
    let (many, alone) = (phase(options.in_flight).await?, phase(1).await?);
    let used = many.cpu.nodes.iter().sum::<f64>() + many.cpu.postgres + many.cpu.redis;
    let found = Found {
        system: System::Ours,
        rate: many.rate,
        alone: alone.answer,
        cpu: used * 1e6 / many.messages.max(1) as f64,
        memory: anonymous(&[cluster.node(0).pid])? / KIB_OF_A_MIB,
        others: many.cpu.others_percent().max(alone.cpu.others_percent()),
    };
    Ok((found, faults, checked))
}

async fn of_nats(options: &Options, system: System, sync: Sync) -> Result<Found> {
    let nats = Nats::start(options, sync).await?;
    let watch = Watch::alone(vec![nats.pid()]);
    let (mut acked, mut phases) = (0, Vec::new());
    for in_flight in [options.in_flight, 1] {
        watch.quiet().await;
        let (ids, start) = (Ids::new(), Instant::now() + WARM_UP);
        let end = start + Duration::from_secs(options.seconds);
        let mut workers = Vec::new();
        for who in 0..in_flight {
            let sender = nats.sender(who).await?;
            workers.push(tokio::spawn(work(sender, ids, who, start, end)));
        }
        sleep_until(start).await;
        let before = watch.now();
        sleep_until(end).await;
        let used = watch.now().since(&before);
        let mut latencies = Latencies::new();
        for worker in workers {
            let (own, sent) = worker.await??;
            latencies.add(&own);
            acked += sent;
        }
        phases.push((latencies.quantiles(), used));
    }
    let stored = nats.stored().await?;
    if stored != acked {
        return Err(format!("it stored {stored} of {acked} messages").into());
    }
    let [(many, used), (alone, used_alone)] = phases.try_into().map_err(|_| "two phases")?;
    Ok(Found {
        system,
        rate: many.count as f64 / options.seconds as f64,
        cpu: used.nodes.iter().sum::<f64>() * 1e6 / many.count.max(1) as f64,
        alone,
        memory: anonymous(&[nats.pid()])? / KIB_OF_A_MIB,
        others: used.others_percent().max(used_alone.others_percent()),
    })
}

/// Sends one message after the other until `end`. Those that are answered after `start` count.
async fn work(
    mut sender: nats::Sender,
    ids: Ids,
    who: usize,
    start: Instant,
    end: Instant,
) -> Result<(Latencies, u64)> {
    let payload = "x".repeat(PAYLOAD_BYTES);
    let (mut latencies, mut sent) = (Latencies::new(), 0);
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok((latencies, sent));
        }
        sender.send(ids.id(who, sent), &payload).await?;
        sent += 1;
        let now = Instant::now();
        if now >= start && now < end {
            latencies.record(now - began);
        }
    }
}

/// The median of a figure of a system; none if it was never measured.
fn of(found: &[Found], system: System, value: impl Fn(&Found) -> f64) -> Option<f64> {
    let own: Vec<f64> = found
        .iter()
        .filter(|one| one.system == system)
        .map(value)
        .collect();
    (!own.is_empty()).then(|| median(own))
}

fn table(found: &[Found]) -> Vec<Vec<String>> {
    let heading = [
        "",
        "msg/s",
        "alone p50 ms",
        "CPU",
        "MiB",
        "done before the answer",
    ];
    let mut table = vec![heading.map(str::to_owned).into()];
    for system in System::ALL {
        let show = |value: fn(&Found) -> f64, digits: usize| {
            let value = of(found, system, value);
            value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
        };
        table.push(vec![
            system.name().to_owned(),
            show(|one| one.rate, 0),
            show(|one| one.alone.p50 / 1000.0, 2),
            show(|one| one.cpu, 0),
            show(|one| one.memory, 0),
            system.promise().to_owned(),
        ]);
    }
    table
}

fn ratios(found: &[Found]) -> Vec<Ratio> {
    let ratio = |what, value: fn(&Found) -> f64, goal| {
        let ours = of(found, System::Ours, value)?;
        let theirs = of(found, System::NatsSynced, value)?;
        Some(Ratio {
            what,
            value: ours / theirs,
            goal,
        })
    };
    let ratios = [
        ratio(
            "msg/s / NATS's, synced",
            |one| one.rate,
            Goal::AtLeast(1.0, 2.0),
        ),
        ratio(
            "alone p50 / NATS's, synced",
            |one| one.alone.p50,
            Goal::None,
        ),
    ];
    ratios.into_iter().flatten().collect()
}
