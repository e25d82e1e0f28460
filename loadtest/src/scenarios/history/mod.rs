//! `history` and `soak`: senders, readers and listeners on three nodes. A nemesis harms the nodes,
//! Postgres and Redis meanwhile, and one member is repeatedly removed and added. The crate `history`
//! judges their observations.
//!
//! `history` is a single round of many operations. `soak` makes one round after the other until its
//! time is over, each with new users and conversations on the same nodes, so that the records of a
//! round fit into memory.

mod clients;
mod links;
mod nemesis;
mod page;
mod trials;

use std::{
    cell::Cell,
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use history::{Fault, History, Plan, Trials};
use serde_json::json;

use self::{
    clients::{World, make_clients},
    links::Links,
    nemesis::Nemesis,
    trials::Stage,
};
use crate::{
    Failure, Options, Result,
    cluster::Cluster,
    cpu::anonymous,
    crowd::Crowd,
    delivery::Faults,
    plain::Plain,
    report::{Report, say},
};

const NODES: usize = 3;
const CONVERSATIONS: usize = 2;
/// The number of users. The first owns the conversations and has a relation with the agents. The
/// last is removed and added.
const USERS: usize = 6;
const AGENTS: usize = 2;
/// Sends and reads of a round of the soak.
const ROUND_OPERATIONS: usize = 5_000;
/// One in so many rounds ends with a calm time for bounds, and waits for deadlines of calls, which
/// are half a minute away.
const LONG_EACH: u64 = 4;
/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The wait between two tries of a socket.
const PAUSE: Duration = Duration::from_millis(100);
/// The number of faults that are shown in full.
const SHOWN: usize = 5;

/// Harms the cluster until `over`. All nodes run afterwards.
async fn harm(
    plain: &mut Plain,
    nemesis: &mut Nemesis,
    world: &World,
    over: &Cell<bool>,
    operations: usize,
) -> Result<()> {
    // The conversations are made before the first harm.
    while world.operations.get() < operations / 50 && !over.get() {
        tokio::time::sleep(PAUSE).await;
    }
    while !over.get() {
        nemesis.strike(plain).await?;
    }
    Ok(())
}

/// Starts the nodes behind proxies, and the nemesis of both.
async fn start(cluster: &Cluster, seed: u64) -> Result<(Plain, Nemesis)> {
    let links = Links::start(cluster, NODES, seed).await?;
    let plain = Plain::start_by(cluster, links.detours.clone(), &[]).await?;
    let nemesis = Nemesis::new(&plain, links, seed).await?;
    Ok((plain, nemesis))
}

/// Runs `history` once.
pub async fn run(cluster: &Cluster, options: &Options) -> Result<Report> {
    let seed = options.seed_or_random();
    let (mut plain, mut nemesis) = start(cluster, seed).await?;
    let mut found = Findings::default();
    let round = found.round(
        cluster,
        &mut plain,
        &mut nemesis,
        options,
        options.operations,
        seed,
    );
    Box::pin(round).await?;
    if nemesis.total() == 0 {
        return Err("it was over before anything was harmed: more --operations".into());
    }
    found.report("history", &nemesis, Vec::new(), options)
}

/// Runs `soak`: rounds until its minutes are over, or until a promise is broken.
pub async fn soak(cluster: &Cluster, options: &Options) -> Result<Report> {
    let seed = options.seed_or_random();
    let (mut plain, mut nemesis) = start(cluster, seed).await?;
    let (mut found, mut memory, mut rounds) = (Findings::default(), Vec::new(), 0);
    let (began, length) = (Instant::now(), Duration::from_secs(60 * options.minutes));
    while began.elapsed() < length && found.faults.is_empty() {
        let round = found.round(
            cluster,
            &mut plain,
            &mut nemesis,
            options,
            options.operations.min(ROUND_OPERATIONS),
            seed + rounds,
        );
        Box::pin(round).await?;
        rounds += 1;
        let lasting = plain.cluster.nodes[NODES - 1].pid;
        memory.push(anonymous(&[lasting])? / 1024.0);
        say(format!(
            "soak: {} of {} minutes, {rounds} rounds, {} harms, {} faults, a node of {:.0} MiB",
            began.elapsed().as_secs() / 60,
            options.minutes,
            nemesis.total(),
            found.faults.len(),
            memory.last().unwrap_or(&0.0),
        ));
    }
    found.report("soak", &nemesis, memory, options)
}

/// The results of all rounds.
#[derive(Default)]
struct Findings {
    counts: BTreeMap<&'static str, u64>,
    faults: Vec<Fault>,
    /// Messages acked in each second since the start.
    acked: Vec<u64>,
    rounds: u64,
}

impl Findings {
    /// Makes a round and judges it.
    async fn round(
        &mut self,
        cluster: &Cluster,
        plain: &mut Plain,
        nemesis: &mut Nemesis,
        options: &Options,
        operations: usize,
        seed: u64,
    ) -> Result<()> {
        let world = Rc::new(World {
            nodes: plain.cluster.nodes.clone(),
            crowd: Crowd::make(cluster, USERS, 1).await?,
            operations: Cell::new(0),
        });
        let opened = Rc::new(Cell::new(0));
        let (players, mut ears) = make_clients(&world, &opened).await?;
        let stage = Stage::set(cluster, &world.nodes).await?;
        let plan = Plan {
            nodes: NODES,
            conversations: CONVERSATIONS,
            operations,
            workers: options.in_flight,
            seed,
        };
        say(format!(
            "{operations} operations of {} clients, seed {seed}",
            plan.workers
        ));
        let (over, began) = (Cell::new(false), Instant::now());
        let acting = async {
            let history = history::drive(plan, &players, &mut ears).await;
            over.set(true);
            history
        };
        let harming = harm(plain, nemesis, &world, &over, operations);
        let is_long = self.rounds.is_multiple_of(LONG_EACH);
        self.rounds += 1;
        let playing = async {
            let (history, played, harmed) = tokio::join!(acting, stage.play(&over), harming);
            let history = history?;
            played?;
            harmed?;
            if is_long {
                stage.calm().await?;
            }
            Ok::<_, Failure>(history)
        };
        let waiting = async {
            match is_long {
                true => stage.answer_late().await,
                false => Ok(()),
            }
        };
        let whole = async { tokio::join!(playing, waiting) };
        // A trial shows its fault at once, and the conversations do at their end.
        let history = tokio::select! {
            (history, late) = whole => {
                late?;
                history?
            }
            () = stage.broken() => History::default(),
        };
        let trials = stage.trials();
        self.count(&history, &trials, opened.get(), began.elapsed());
        self.note_acked(&history, began.duration_since(nemesis.began));
        self.faults.extend(history::judge(&history));
        self.faults.extend(history::judge_trials(&trials));
        Ok(())
    }

    /// Counts the messages of a round that began at `since` by the second of their answers.
    fn note_acked(&mut self, history: &History, since: Duration) {
        let acked = history.sends.iter().filter(|send| send.seq.is_some());
        for ended in acked.filter_map(|send| send.span.ended) {
            let second = (since + Duration::from_nanos(ended)).as_secs();
            let second = usize::try_from(second).unwrap_or_default();
            if self.acked.len() <= second {
                self.acked.resize(second + 1, 0);
            }
            self.acked[second] += 1;
        }
    }

    fn count(&mut self, history: &History, trials: &Trials, opened: usize, took: Duration) {
        let sends = &history.sends;
        let acked = sends.iter().filter(|send| send.seq.is_some()).count();
        let refused = sends.iter().filter(|send| send.refused).count();
        let stays = history.stays.iter();
        let heard: usize = history.heard.iter().map(Vec::len).sum();
        let counts = [
            ("sends", sends.len()),
            ("acked", acked),
            ("refused", refused),
            ("unknown", sends.len() - acked - refused),
            ("reads", history.reads.len()),
            ("events judged", heard),
            (
                "times that the guest was put out",
                stays.filter(|stay| stay.left.is_some()).count(),
            ),
            ("sockets opened", opened),
            ("trials: things ended", trials.endings.len()),
            ("trials: uses around an end", trials.attempts.len()),
            ("trials: sockets of ended credentials", trials.watches.len()),
            ("trials: sockets held against the bound", trials.holds.len()),
            ("trials: calls within a limit", trials.admissions.len()),
            ("trials: answers taken", trials.answers.len()),
            ("trials: quiet words heard", trials.waits.len()),
            ("seconds", took.as_secs() as usize),
            ("rounds", 1),
        ];
        for (what, n) in counts {
            *self.counts.entry(what).or_default() += n as u64;
        }
    }

    /// The report, and a page beside it. `memory` is that of a node that was never ended, in MiB, after each round.
    fn report(
        self,
        scenario: &'static str,
        nemesis: &Nemesis,
        memory: Vec<f64>,
        options: &Options,
    ) -> Result<Report> {
        let mut kinds: BTreeMap<&'static str, u64> = BTreeMap::new();
        for fault in &self.faults {
            *kinds.entry(fault.kind()).or_default() += 1;
        }
        let of = |names: &[&str]| names.iter().filter_map(|name| kinds.get(name)).sum();
        let faults = Faults {
            failed: 0,
            lost: of(&["lost", "unheard"]),
            duplicated: of(&["doubled", "ambiguous"]),
            reordered: of(&["order", "reordered"]),
            inbox_gaps: of(&["gap", "inbox"]),
            strange: of(&[
                "phantom",
                "outsider",
                "revived",
                "unclosed",
                "crowded",
                "flooded",
                "redecided",
                "late",
            ]),
        };
        let row = |what: &str, n: String| vec![what.to_owned(), n];
        let mut rows = vec![row(scenario, String::new())];
        let numbers = self.counts.iter().chain(&nemesis.counts);
        rows.extend(numbers.map(|(what, n)| row(what, n.to_string())));
        rows.push(row("pairs of harms", nemesis.pairs.to_string()));
        if let [first, .., last] = &memory[..] {
            let grown = format!("{first:.0} → {last:.0}");
            rows.push(row("MiB of the lasting node, first and last round", grown));
        }
        rows.push(row("faults", self.faults.len().to_string()));
        let page = page::page(scenario, &self.acked, &nemesis.marks, &rows);
        let file = options.dir.join(format!("{scenario}.html"));
        std::fs::write(&file, page)?;
        say(format!("A page about it is {}.", file.display()));
        Ok(Report {
            scenario,
            tables: vec![rows],
            ratios: Vec::new(),
            notes: self
                .faults
                .iter()
                .take(SHOWN)
                .map(|fault| format!("{fault:?}"))
                .collect(),
            details: json!({
                "numbers": self.counts, "harms": nemesis.counts, "memory_mib": memory, "faults": kinds,
            }),
            faults,
            checked: self.counts.get("acked").copied().unwrap_or_default(),
            p99_ms: None,
        })
    }
}
