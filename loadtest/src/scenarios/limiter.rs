//! `limiter`: how much of a send is its limits?
//!
//! The nodes time each decision themselves, from the call to Redis to its answer. Sends run as in `send`, alone and
//! many at once on one node, and what was acked is checked likewise. Beside them, in the same rounds, many at once on two
//! nodes of our own that differ in one setting: one counts limits, the other does not.

use serde::Serialize;
use serde_json::json;

use super::send::{self, Phase};
use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{self, Watch},
    delivery::Faults,
    people::{self, Pair},
    plain::Plain,
    report::{Goal, Ratio, Report, say},
    stats::median,
};

/// What one phase of one round found.
#[derive(Clone, Serialize)]
struct Found {
    phase: &'static str,
    /// Median time to the answer, in ms.
    send_p50_ms: f64,
    /// Mean time of a decision, in ms.
    limiter_ms: f64,
    /// Decisions, each of them one call to Redis, per send.
    decisions: f64,
    others_percent: f64,
}

/// Sends a second, many at once, by nodes that differ in this.
#[derive(Serialize)]
struct Compared {
    limited: f64,
    unlimited: f64,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let phases = [
        Phase { name: "alone", in_flight: 1, nodes: 1 },
        Phase { name: "many at once", in_flight: options.in_flight, nodes: 1 },
    ];
    let watch = Watch::of(cluster).await?;
    let mut own = Vec::new();
    for off in ["false", "true"] {
        own.push(Plain::start_with(cluster, 1, &[("LIMITS_OFF", off)]).await?);
    }
    let mut compared = Vec::new();
    let (mut rounds, mut faults, mut checked) = (Vec::new(), Faults::default(), 0);
    for n in 1..=options.rounds {
        say(format!("limiter: round {n} of {}", options.rounds));
        for phase in phases {
            people::renew(cluster, pairs).await?;
            watch.quiet().await;
            let before = decisions(cluster).await?;
            let driven = send::drive(cluster, &watch, pairs, phase, options.seconds).await?;
            let after = decisions(cluster).await?;
            let sends = driven.acked.iter().map(Vec::len).sum::<usize>() as u64;
            checked += sends;
            faults.add(&send::verify(cluster, pairs, &driven).await?);
            rounds.push(Found {
                phase: phase.name,
                send_p50_ms: driven.found.answer.p50 / 1000.0,
                limiter_ms: (after.1 - before.1) / (after.0 - before.0).max(1.0) * 1000.0,
                decisions: (after.0 - before.0) / sends.max(1) as f64,
                others_percent: driven.found.cpu.others_percent(options.seconds),
            });
        }
        let mut rates = Vec::new();
        for node in &own {
            people::renew(cluster, pairs).await?;
            watch.quiet().await;
            let driven = send::drive(&node.cluster, &watch, pairs, phases[1], options.seconds).await?;
            checked += driven.acked.iter().map(Vec::len).sum::<usize>() as u64;
            faults.add(&send::verify(cluster, pairs, &driven).await?);
            rates.push(driven.found.rate);
        }
        compared.push(Compared { limited: rates[0], unlimited: rates[1] });
    }
    let ratios = ratios(&rounds, &compared);
    let of = |phase: &str, value: fn(&Found) -> f64| median_of(&rounds, phase, value);
    let mut table: Vec<Vec<String>> = vec![
        ["", "send p50 ms", "limiter mean ms", "decisions per send", "others %"].map(str::to_owned).into(),
    ];
    for Phase { name, .. } in phases {
        table.push(vec![
            name.to_owned(),
            format!("{:.2}", of(name, |found| found.send_p50_ms)),
            format!("{:.3}", of(name, |found| found.limiter_ms)),
            format!("{:.3}", of(name, |found| found.decisions)),
            format!("{:.0}", of(name, |found| found.others_percent)),
        ]);
    }
    let worst = rounds.iter().map(|found| found.others_percent).fold(0.0, f64::max);
    let mut notes = vec!["Medians of the rounds. A decision is one call to Redis.".to_owned()];
    notes.extend(cpu::remark(worst));
    let details = json!({
        "in_flight": options.in_flight, "seconds": options.seconds, "rounds": rounds, "compared": compared,
    });
    Ok(Report { scenario: "limiter", tables: vec![table], ratios, notes, details, faults, checked })
}

fn median_of(rounds: &[Found], phase: &str, value: fn(&Found) -> f64) -> f64 {
    median(rounds.iter().filter(|found| found.phase == phase).map(value))
}

fn ratios(rounds: &[Found], compared: &[Compared]) -> Vec<Ratio> {
    let share = |phase| median_of(rounds, phase, |found| found.limiter_ms / found.send_p50_ms);
    vec![
        Ratio { what: "limiter / send p50, alone", value: share("alone"), goal: Goal::AtMost(0.1, 0.05) },
        Ratio {
            what: "limiter / send p50, many at once",
            value: share("many at once"),
            goal: Goal::AtMost(0.1, 0.05),
        },
        Ratio {
            what: "decisions per send",
            value: median_of(rounds, "alone", |found| found.decisions),
            goal: Goal::AtMost(1.0, 1.0),
        },
        Ratio {
            what: "throughput with limits / without",
            value: median(compared.iter().map(|found| found.limited / found.unlimited)),
            goal: Goal::AtLeast(0.8, 0.93),
        },
    ]
}

/// Decisions of all nodes so far, and their seconds.
async fn decisions(cluster: &Cluster) -> Result<(f64, f64)> {
    let mut total = (0.0, 0.0);
    for node in &cluster.nodes {
        let metrics = node.metrics().await?;
        total.0 += metrics.sum("limiter_seconds_count");
        total.1 += metrics.sum("limiter_seconds_sum");
    }
    Ok(total)
}
