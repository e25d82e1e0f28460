//! `scaleout`: durable sends on one node, two, three and four, spread over all conversations, and in
//! a single lively one. The nodes share a machine, so the total can only fall: the figures show what
//! a further node costs, and what a message costs each part.

use serde::Serialize;
use serde_json::json;

use super::send::{self, Found, Phase};
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

/// The most nodes whose figures have names.
const MAX_NODES: usize = 4;
/// The names of the phases, by conversations and nodes.
const SPREAD: [&str; MAX_NODES] = [
    "many conversations, 1 node",
    "many conversations, 2 nodes",
    "many conversations, 3 nodes",
    "many conversations, 4 nodes",
];
const LIVELY: [&str; MAX_NODES] = [
    "one conversation, 1 node",
    "one conversation, 2 nodes",
    "one conversation, 3 nodes",
    "one conversation, 4 nodes",
];

/// The findings of a phase, by round.
#[derive(Serialize)]
struct Series {
    phase: &'static str,
    nodes: usize,
    is_lively: bool,
    rounds: Vec<Found>,
}

impl Series {
    /// The median over the rounds.
    fn of(&self, value: impl Fn(&Found) -> f64) -> f64 {
        median(self.rounds.iter().map(value))
    }

    /// µs per message.
    fn cpu(&self, seconds: impl Fn(&Found) -> f64) -> f64 {
        self.of(|found| seconds(found) * 1e6 / found.messages.max(1) as f64)
    }

    fn node_cpu(&self) -> f64 {
        self.cpu(|found| found.cpu.nodes.iter().sum())
    }

    fn postgres_cpu(&self) -> f64 {
        self.cpu(|found| found.cpu.postgres)
    }

    fn redis_cpu(&self) -> f64 {
        self.cpu(|found| found.cpu.redis)
    }

    fn row(&self) -> Vec<String> {
        let ms = |us: f64| format!("{:.2}", us / 1000.0);
        vec![
            self.phase.to_owned(),
            format!("{:.0}", self.of(|found| found.rate)),
            ms(self.of(|found| found.answer.p50)),
            ms(self.of(|found| found.answer.p99)),
            format!("{:.1}", self.of(|found| found.batch)),
            format!("{:.0}", self.node_cpu()),
            format!("{:.0}", self.postgres_cpu()),
            format!("{:.0}", self.redis_cpu()),
            format!("{:.0}", self.of(|found| found.cpu.others_percent())),
        ]
    }
}

/// Runs the scenario.
pub async fn run(cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
    let most = options.nodes.unwrap_or(MAX_NODES).clamp(1, MAX_NODES);
    let mut series = Vec::new();
    for (is_lively, names) in [(false, SPREAD), (true, LIVELY)] {
        series.extend((0..most).map(|n| Series {
            phase: names[n],
            nodes: n + 1,
            is_lively,
            rounds: Vec::new(),
        }));
    }
    let (mut faults, mut checked) = (Faults::default(), 0);
    for round in 1..=options.rounds {
        for nodes in 1..=most {
            say(format!("scaleout: round {round}, {nodes} nodes"));
            let plain = Plain::start(cluster, nodes).await?;
            let watch = Watch::of(&plain.cluster).await?;
            for one in series.iter_mut().filter(|one| one.nodes == nodes) {
                fixtures::renew(cluster.node(0), pairs).await?;
                watch.quiet().await;
                let conversations = if one.is_lively { 1 } else { pairs.len() };
                let own = &mut pairs[..conversations];
                let phase = Phase {
                    name: one.phase,
                    in_flight: options.in_flight,
                    nodes,
                };
                let driven =
                    send::drive(&plain.cluster, &watch, own, phase, options.seconds).await?;
                checked += driven.acked.iter().map(Vec::len).sum::<usize>() as u64;
                faults.add(&send::verify(&plain.cluster, own, &driven).await?);
                one.rounds.push(driven.found);
            }
        }
    }
    let heading = [
        "",
        "msg/s",
        "p50 ms",
        "p99 ms",
        "batch",
        "nodes CPU",
        "Postgres",
        "Redis",
        "others %",
    ];
    let mut table = vec![heading.map(str::to_owned).to_vec()];
    table.extend(series.iter().map(Series::row));
    let mut notes = vec![format!(
        "Medians of the rounds; {} sends under way; {} conversations, or a single one. CPU: µs of processor time per \
         message. Nodes have no TLS.",
        options.in_flight,
        pairs.len()
    )];
    let others = series.iter().flat_map(|one| &one.rounds);
    notes.extend(cpu::remark(
        others
            .map(|found| found.cpu.others_percent())
            .fold(0.0, f64::max),
    ));
    Ok(Report {
        scenario: "scaleout",
        tables: vec![table],
        ratios: ratios(&series, most),
        notes,
        details: json!({ "in_flight": options.in_flight, "pairs": pairs.len(), "series": series }),
        faults,
        checked,
        p99_ms: None,
    })
}

/// The rates beside those of a single node, and the plain figures that the capacity model is held
/// to.
fn ratios(series: &[Series], most: usize) -> Vec<Ratio> {
    let rate = |n: usize| series[n].of(|found| found.rate);
    let beside = |what, value, goal| Ratio { what, value, goal };
    let mut ratios = Vec::new();
    let names = [
        "many conversations, 2 nodes / 1 node, msg/s",
        "many conversations, 3 nodes / 1 node, msg/s",
        "many conversations, 4 nodes / 1 node, msg/s",
    ];
    let goals = [
        Goal::AtLeast(0.9, 0.97),
        Goal::AtLeast(0.85, 0.97),
        Goal::None,
    ];
    for (n, (what, goal)) in names.into_iter().zip(goals).enumerate().take(most - 1) {
        ratios.push(beside(what, rate(n + 1) / rate(0), goal));
    }
    let names = [
        "one conversation, 1 node / many conversations, msg/s",
        "one conversation, 2 nodes / many conversations, msg/s",
        "one conversation, 3 nodes / many conversations, msg/s",
        "one conversation, 4 nodes / many conversations, msg/s",
    ];
    for (n, what) in names.into_iter().enumerate().take(most) {
        ratios.push(beside(what, rate(most + n) / rate(n), Goal::None));
    }
    let figures = [
        [
            "1 node, msg/s",
            "2 nodes, msg/s",
            "3 nodes, msg/s",
            "4 nodes, msg/s",
        ],
        [
            "1 node, µs of the node per message",
            "2 nodes, µs of the nodes per message",
            "3 nodes, µs of the nodes per message",
            "4 nodes, µs of the nodes per message",
        ],
        [
            "1 node, µs of Postgres per message",
            "2 nodes, µs of Postgres per message",
            "3 nodes, µs of Postgres per message",
            "4 nodes, µs of Postgres per message",
        ],
        [
            "1 node, µs of Redis per message",
            "2 nodes, µs of Redis per message",
            "3 nodes, µs of Redis per message",
            "4 nodes, µs of Redis per message",
        ],
    ];
    for (n, one) in series.iter().enumerate().take(most) {
        let values = [
            one.of(|found| found.rate),
            one.node_cpu(),
            one.postgres_cpu(),
            one.redis_cpu(),
        ];
        for (names, value) in figures.iter().zip(values) {
            ratios.push(beside(names[n], value, Goal::None));
        }
    }
    ratios
}
