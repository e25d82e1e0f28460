//! `limiter`: the share of the limits in a send.
//!
//! Two pairs of additional nodes differ in one setting: one counts limits, the other does not. The
//! sends of `send`, single and concurrent, alternate between them. A turn is shorter than half a
//! second, because machines change their speed within minutes. The acked messages are checked as in
//! `send`. The cost of the limits is their addition to the median of a send. The nodes' own series
//! for a decision, waiting included, stands beside it.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::send::{self, Driven, Phase};
use crate::{
    Options, Result,
    cluster::Cluster,
    cpu::{self, Watch},
    delivery::Faults,
    fixtures::{self, Pair},
    plain::Plain,
    report::{Goal, Ratio, Report, say},
    stats::median,
};

/// The length of a turn of one pair of nodes.
const TURN: Duration = Duration::from_millis(400);

/// The findings for one pair of nodes in one phase.
#[derive(Serialize)]
struct Found {
    /// Sends a second.
    rate: f64,
    /// Median time to the answer, in ms.
    p50_ms: f64,
    /// Messages of one transaction.
    batch: f64,
    /// CPU in µs per send.
    node_us: f64,
    postgres_us: f64,
    redis_us: f64,
    /// Decisions per send, and their mean time in ms.
    decisions: f64,
    decision_ms: f64,
    others_percent: f64,
}

/// A phase of a round, with and without limits.
#[derive(Serialize)]
struct Compared {
    phase: &'static str,
    limited: Found,
    unlimited: Found,
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let phases = [
        Phase {
            name: "alone",
            in_flight: 1,
            nodes: 1,
        },
        Phase {
            name: "many at once",
            in_flight: options.in_flight,
            nodes: 2,
        },
    ];
    let limited = Plain::start_with(cluster, 2, &[("LIMITS_OFF", "false")]).await?;
    let unlimited = Plain::start_with(cluster, 2, &[("LIMITS_OFF", "true")]).await?;
    let watches = [
        Watch::of(&limited.cluster).await?,
        Watch::of(&unlimited.cluster).await?,
    ];
    let turns = u32::try_from(options.seconds * 1000 / TURN.as_millis() as u64)?.max(1);
    let (mut rounds, mut faults, mut checked) = (Vec::new(), Faults::default(), 0);
    for n in 1..=options.rounds {
        say(format!("limiter: round {n} of {}", options.rounds));
        for phase in phases {
            fixtures::renew(cluster.node(0), pairs).await?;
            watches[0].quiet().await;
            let before = decisions(&limited.cluster).await?;
            let targets = [
                (&limited.cluster, &watches[0]),
                (&unlimited.cluster, &watches[1]),
            ];
            let driven = send::drive_in_turns(&targets, pairs, phase, TURN, turns).await?;
            let after = decisions(&limited.cluster).await?;
            let [mut with, without] =
                <[Driven; 2]>::try_from(driven).map_err(|_| "a pair is missing")?;
            let decided = (after.0 - before.0, after.1 - before.1);
            let (limited, unlimited) = (Found::of(&with, decided), Found::of(&without, (0.0, 0.0)));
            rounds.push(Compared {
                phase: phase.name,
                limited,
                unlimited,
            });
            with.join(without);
            checked += with.acked.iter().map(Vec::len).sum::<usize>() as u64;
            faults.add(&send::verify(cluster, pairs, &with).await?);
        }
    }
    let found = rounds
        .iter()
        .flat_map(|round| [&round.limited, &round.unlimited]);
    let mut notes = vec![
        "Medians of the rounds, ratios too. CPU: µs of processor time per send. A decision is one call to Redis or part of \
         one."
            .to_owned(),
    ];
    notes.extend(cpu::remark(
        found.map(|found| found.others_percent).fold(0.0, f64::max),
    ));
    let details =
        json!({ "in_flight": options.in_flight, "seconds": options.seconds, "rounds": rounds });
    let tables = vec![table(&rounds, phases)];
    Ok(Report {
        scenario: "limiter",
        tables,
        ratios: ratios(&rounds),
        notes,
        details,
        faults,
        checked,
        p99_ms: None,
    })
}

fn table(rounds: &[Compared], phases: [Phase; 2]) -> Vec<Vec<String>> {
    let heading = [
        "",
        "msg/s",
        "p50 ms",
        "batch",
        "node CPU",
        "Postgres",
        "Redis",
        "decisions per send",
        "mean ms",
        "others %",
    ];
    let mut table: Vec<Vec<String>> = vec![heading.map(str::to_owned).into()];
    for Phase { name, .. } in phases {
        for limited in [true, false] {
            let of = |value: fn(&Found) -> f64| {
                let rounds = rounds.iter().filter(|round| round.phase == name);
                median(rounds.map(|round| {
                    value(if limited {
                        &round.limited
                    } else {
                        &round.unlimited
                    })
                }))
            };
            table.push(vec![
                format!(
                    "{name}, {}",
                    if limited { "with limits" } else { "without" }
                ),
                format!("{:.0}", of(|found| found.rate)),
                format!("{:.3}", of(|found| found.p50_ms)),
                format!("{:.1}", of(|found| found.batch)),
                format!("{:.0}", of(|found| found.node_us)),
                format!("{:.0}", of(|found| found.postgres_us)),
                format!("{:.0}", of(|found| found.redis_us)),
                format!("{:.3}", of(|found| found.decisions)),
                format!("{:.3}", of(|found| found.decision_ms)),
                format!("{:.0}", of(|found| found.others_percent)),
            ]);
        }
    }
    table
}

fn ratios(rounds: &[Compared]) -> Vec<Ratio> {
    let of = |phase: &str, value: fn(&Compared) -> f64| {
        median(
            rounds
                .iter()
                .filter(|round| round.phase == phase)
                .map(value),
        )
    };
    let added = |round: &Compared| 1.0 - round.unlimited.p50_ms / round.limited.p50_ms;
    vec![
        Ratio {
            what: "added by limits / send p50, alone",
            value: of("alone", added),
            goal: Goal::AtMost(0.25, 0.1),
        },
        Ratio {
            what: "added by limits / send p50, many at once",
            value: of("many at once", added),
            goal: Goal::AtMost(0.1, 0.05),
        },
        Ratio {
            what: "decisions per send",
            value: of("alone", |round| round.limited.decisions),
            goal: Goal::AtMost(1.0, 1.0),
        },
        Ratio {
            what: "throughput with limits / without",
            value: of("many at once", |round| {
                round.limited.rate / round.unlimited.rate
            }),
            goal: Goal::AtLeast(0.8, 0.93),
        },
    ]
}

impl Found {
    /// `decided` is the number of decisions and their total seconds.
    fn of(driven: &Driven, decided: (f64, f64)) -> Self {
        let found = &driven.found;
        let sends = driven.acked.iter().map(Vec::len).sum::<usize>().max(1) as f64;
        let per_send = |seconds: f64| seconds * 1e6 / found.answer.count.max(1) as f64;
        Found {
            rate: found.rate,
            p50_ms: found.answer.p50 / 1000.0,
            batch: found.batch,
            node_us: per_send(found.cpu.nodes.iter().sum()),
            postgres_us: per_send(found.cpu.postgres),
            redis_us: per_send(found.cpu.redis),
            decisions: decided.0 / sends,
            decision_ms: decided.1 / decided.0.max(1.0) * 1000.0,
            others_percent: found.cpu.others_percent(),
        }
    }
}

/// The number of both nodes' decisions so far, and their total seconds.
async fn decisions(cluster: &Cluster) -> Result<(f64, f64)> {
    let mut decisions = (0.0, 0.0);
    for node in &cluster.nodes {
        let metrics = node.metrics().await?;
        decisions.0 += metrics.sum("limiter_seconds_count");
        decisions.1 += metrics.sum("limiter_seconds_sum");
    }
    Ok(decisions)
}
