//! `slow`: clients that never read, beside as many that do, in the same conversations. It measures
//! the effect on the readers and the cost for the node. It also checks that the sleepers get
//! everything later.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::json;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::anonymous,
    crowd::{Crowd, Line, event},
    delivery::Faults,
    plain::Plain,
    report::{Goal, Ratio, Report, say},
    stats::{Latencies, Quantiles, median},
};

/// The size of payloads: large, so that the buffers of clients that do not read are full soon.
const PAYLOAD_BYTES: usize = 16 * 1024;
/// The number of readers of one conversation, and of members that do not read.
const GROUP: usize = 50;
/// The longest wait for acked messages that have not arrived.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The findings of one phase; times in µs from the send.
#[derive(Serialize)]
struct Found {
    phase: &'static str,
    receive: Quantiles,
    /// The growth of both nodes' memory during the phase, in MiB.
    grown: f64,
    /// The number of sockets that were closed as slow.
    closed: f64,
    /// The number of bodies that did not fit into a mailbox.
    dropped: f64,
}

#[derive(Default)]
struct Heard {
    each: Option<Latencies>,
    /// The time of the newest message's send, by conversation.
    sent_at: Vec<Option<Instant>>,
    arrived: u64,
    gaps: u64,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    LocalSet::new().run_until(measure(cluster, options)).await
}

async fn measure(cluster: &Cluster, options: &Options) -> Result<Report> {
    let half = options.sockets_or(2_000) / 2;
    let (mut rounds, mut faults, mut checked) = (Vec::new(), Faults::default(), 0);
    for n in 1..=options.rounds {
        say(format!("slow: round {n} of {}", options.rounds));
        let (found, wrong, messages) = Box::pin(round(cluster, half, options)).await?;
        faults.add(&wrong);
        checked += messages;
        rounds.push(found);
    }
    let heading = [
        "",
        "receive p50",
        "p99",
        "max",
        "nodes grew MiB",
        "closed 4410",
        "bodies dropped",
    ];
    let mut table = vec![heading.map(str::to_owned).into()];
    for phase in 0..2 {
        let of = |value: &dyn Fn(&Found) -> f64| {
            format!(
                "{:.0}",
                median(rounds.iter().map(|round| value(&round[phase])))
            )
        };
        table.push(vec![
            rounds[0][phase].phase.to_owned(),
            of(&|found| found.receive.p50),
            of(&|found| found.receive.p99),
            of(&|found| found.receive.max),
            of(&|found| found.grown),
            of(&|found| found.closed),
            of(&|found| found.dropped),
        ]);
    }
    let p99 = |phase: usize| median(rounds.iter().map(|round| round[phase].receive.p99));
    let ratios = vec![Ratio {
        what: "readers' p99 with sleepers / without",
        value: p99(1) / p99(0),
        goal: Goal::AtMost(2.0, 1.2),
    }];
    let notes = vec![format!(
        "{half} readers and {half} sleepers in conversations of {GROUP} and {GROUP}; payloads of {PAYLOAD_BYTES} bytes; times in µs \
         from the send."
    )];
    let details = json!({ "sockets": 2 * half, "payload_bytes": PAYLOAD_BYTES, "rounds": rounds });
    Ok(Report {
        scenario: "slow",
        tables: vec![table],
        ratios,
        notes,
        details,
        faults,
        checked,
        p99_ms: None,
    })
}

async fn round(
    cluster: &Cluster,
    half: usize,
    options: &Options,
) -> Result<(Vec<Found>, Faults, u64)> {
    let plain = Plain::start(cluster, 2).await?;
    let nodes = &plain.cluster;
    // Even users read, odd ones sleep.
    let crowd = Crowd::make(nodes, 2 * half, 1).await?;
    let mut groups = Vec::new();
    for first in (0..2 * half).step_by(2 * GROUP) {
        groups.push(
            crowd
                .group(first..(first + 2 * GROUP).min(2 * half))
                .await?,
        );
    }
    let heard = Rc::new(RefCell::new(Heard {
        sent_at: vec![None; groups.len()],
        ..Heard::default()
    }));
    let mut readers: Vec<JoinHandle<()>> = Vec::new();
    for user in (0..2 * half).step_by(2) {
        let mut line = crowd.connect(nodes.node(user / 2), user, 0, None).await?;
        line.caught_up().await?;
        readers.push(spawn_local(read(line, user / (2 * GROUP), heard.clone())));
    }
    let pids: Vec<u32> = nodes.nodes.iter().map(|node| node.pid).collect();
    let mut sent = vec![0_u64; groups.len()];
    let mut faults = Faults::default();
    let mut found = Vec::new();
    let mut sleepers = Vec::new();
    for phase in ["all read", "half sleep"] {
        if phase == "half sleep" {
            for user in (1..2 * half).step_by(2) {
                let mut line = crowd.connect_sleepy(nodes.node(user / 2), user).await?;
                line.caught_up().await?;
                sleepers.push(line);
            }
        }
        let (memory, before) = (anonymous(&pids)?, counters(nodes).await?);
        heard.borrow_mut().each = Some(Latencies::new());
        let until = Instant::now() + Duration::from_secs(options.seconds.max(12));
        let mut turn = 0;
        while Instant::now() < until {
            let group = turn % groups.len();
            let mut sender = crowd
                .sender(
                    nodes.node(turn),
                    2 * GROUP * group,
                    &groups[group],
                    PAYLOAD_BYTES,
                )
                .await?;
            heard.borrow_mut().sent_at[group] = Some(Instant::now());
            match sender.send().await {
                Ok(_) => sent[group] += 1,
                Err(_) => faults.failed += 1,
            }
            turn += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let began = Instant::now();
        let due: u64 = sent
            .iter()
            .enumerate()
            .map(|(group, n)| n * readers_of(group, half))
            .sum();
        while heard.borrow().arrived < due && began.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        faults.lost += due.saturating_sub(heard.borrow().arrived);
        let after = counters(nodes).await?;
        let each = heard
            .borrow_mut()
            .each
            .take()
            .unwrap_or_else(Latencies::new);
        found.push(Found {
            phase,
            receive: each.quantiles(),
            grown: (anonymous(&pids)? - memory) / 1024.0,
            closed: after.0 - before.0,
            dropped: after.1 - before.1,
        });
    }
    drop(sleepers);
    // Sleepers now read everything, from the beginning and in order.
    let mut checked = heard.borrow().arrived;
    for user in (1..2 * half).step_by(2) {
        let mut line = crowd.connect(nodes.node(user), user, 0, None).await?;
        let (missed, _) = line.caught_up().await?;
        let due = sent[user / (2 * GROUP)];
        faults.lost += due.saturating_sub(missed.len() as u64);
        faults.inbox_gaps += missed.iter().zip(1..).filter(|(seq, n)| *seq != n).count() as u64;
        checked += missed.len() as u64;
    }
    faults.inbox_gaps += heard.borrow().gaps;
    readers.iter().for_each(JoinHandle::abort);
    Ok((found, faults, checked))
}

fn readers_of(group: usize, half: usize) -> u64 {
    (half - group * GROUP).min(GROUP) as u64
}

async fn read(mut line: Line, group: usize, heard: Rc<RefCell<Heard>>) {
    let mut seq = 0;
    while let Ok(text) = line.hear().await {
        let Some(n) = event(&text) else { continue };
        seq += 1;
        let mut heard = heard.borrow_mut();
        heard.gaps += u64::from(n != seq);
        heard.arrived += 1;
        if let Some(at) = heard.sent_at[group]
            && let Some(each) = &mut heard.each
        {
            each.record(at.elapsed());
        }
    }
}

/// The numbers of sockets closed as slow, and of dropped bodies.
async fn counters(nodes: &Cluster) -> Result<(f64, f64)> {
    let (mut closed, mut dropped) = (0.0, 0.0);
    for node in &nodes.nodes {
        let metrics = node.metrics().await?;
        closed += metrics.sum_having("sockets_closed_total", "4410");
        dropped += metrics.sum("mailbox_dropped_total");
    }
    Ok((closed, dropped))
}
