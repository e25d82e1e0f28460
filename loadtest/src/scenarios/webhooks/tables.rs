//! The report of the scenario.

use super::{Faults, Receiver, Report, Round, cpu, json};
use crate::{
    report::{Goal, Ratio},
    stats::median,
};

/// The report over all rounds. `agents` is the size of the crowd.
pub fn report(rounds: Vec<Round>, receiver: &Receiver, agents: usize) -> Report {
    let mut notes = vec![format!(
        "Medians of the rounds. CPU: µs of processor time per delivery. Delay: from the planned moment of a send. The \
         crowd: {agents} agents with a webhook and nothing to deliver."
    )];
    let others = rounds.iter().map(|round| round.others_percent);
    notes.extend(cpu::remark(others.fold(0.0, f64::max)));
    // Every round waits for all of its messages, so none is lost here.
    let faults: Faults = receiver.arrivals.borrow().faults;
    Report {
        scenario: "webhooks",
        tables: vec![table(&rounds)],
        ratios: ratios(&rounds),
        notes,
        details: json!({ "agents": agents, "rounds": rounds }),
        faults,
        checked: receiver.messages() as u64,
        p99_ms: None,
    }
}

/// The median of a number over the rounds with or without the crowd.
fn of(rounds: &[Round], is_crowded: bool, value: fn(&Round) -> f64) -> f64 {
    let rounds = rounds.iter().filter(|round| round.is_crowded == is_crowded);
    median(rounds.map(value))
}

fn table(rounds: &[Round]) -> Vec<Vec<String>> {
    let heading = [
        "", "active", "per s", "p50 ms", "p99 ms", "node CPU", "Postgres", "Redis", "others %",
    ];
    let mut table: Vec<Vec<String>> = vec![heading.map(str::to_owned).into()];
    for (name, is_crowded) in [("few agents", false), ("in the crowd", true)] {
        let number = |value| format!("{:.0}", of(rounds, is_crowded, value));
        let ms = |value: fn(&Round) -> f64| format!("{:.2}", of(rounds, is_crowded, value) / 1e3);
        table.push(vec![
            format!("webhooks, {name}"),
            number(|round| round.active as f64),
            number(|round| round.rate),
            ms(|round| round.delay.p50),
            ms(|round| round.delay.p99),
            number(|round| round.node_us),
            number(|round| round.postgres_us),
            number(|round| round.redis_us),
            number(|round| round.others_percent),
        ]);
        table.push(vec![
            format!("bare POSTs, {name}"),
            String::new(),
            number(|round| round.bare_rate),
            ms(|round| round.bare_delay.p50),
            ms(|round| round.bare_delay.p99),
        ]);
    }
    table
}

fn cpu_us(round: &Round) -> f64 {
    round.node_us + round.postgres_us + round.redis_us
}

fn ratios(rounds: &[Round]) -> Vec<Ratio> {
    let few = |value| of(rounds, false, value);
    let growth = |value| of(rounds, true, value) / few(value);
    let shared = |what, value, goal| Ratio { what, value, goal };
    let to_bare = |round: &Round| round.rate / round.bare_rate;
    vec![
        shared(
            "deliveries / bare POSTs",
            few(to_bare),
            Goal::AtLeast(0.5, 0.8),
        ),
        shared(
            "deliveries / bare POSTs, in the crowd",
            of(rounds, true, to_bare),
            Goal::None,
        ),
        shared(
            "delay p50 in ms",
            few(|round| round.delay.p50 / 1e3),
            Goal::None,
        ),
        shared(
            "delay p99 in ms",
            few(|round| round.delay.p99 / 1e3),
            Goal::None,
        ),
        shared("CPU per delivery in µs", few(cpu_us), Goal::None),
        shared(
            "deliveries, in the crowd / few agents",
            growth(|round| round.rate),
            Goal::None,
        ),
        shared(
            "CPU per delivery, in the crowd / few agents",
            growth(cpu_us),
            Goal::None,
        ),
        shared(
            "delay p50, in the crowd / few agents",
            growth(|round| round.delay.p50),
            Goal::None,
        ),
        shared(
            "delay p99, in the crowd / few agents",
            growth(|round| round.delay.p99),
            Goal::None,
        ),
    ]
}
