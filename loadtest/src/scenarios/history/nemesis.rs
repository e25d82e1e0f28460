//! The nemesis: it harms nodes, Postgres, Redis and the links between them while clients act. A seed
//! repeats its choices, not their moments.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use faultproxy::{Mode, Way};
use history::Chance;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::NoTls;

use super::{
    links::{Link, Links},
    page::Mark,
};
use crate::{Result, cpu::Watch, plain::Plain, redis, report::say};

/// The longest wait for Postgres, for a drain, or for a node that starts.
const TIMEOUT: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(100);
/// The least and the longest time for which a harm lasts.
const HARM_MS: [usize; 2] = [300, 4_000];
/// The least and the longest time until the next one.
const CALM_MS: [usize; 2] = [500, 2_500];
/// One in so many harms comes with another one.
const PAIR_EACH: usize = 3;

/// The delays of a slow link, least and longest, in milliseconds.
const DELAY_MS: [usize; 2] = [20, 600];
/// The bytes of a second over a narrow link, least and most.
const RATE_BYTES: [usize; 2] = [10_000, 200_000];
/// The bytes after which connections are cut, least and most.
const CUT_BYTES: [usize; 2] = [1, 60_000];
/// The time in which the proxies learn of a mode.
const MODE_PAUSE: Duration = Duration::from_millis(50);

/// What goes wrong. They are done in this order if two come together: the first ones need a store
/// that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    EmptyRedis,
    CutRedis,
    CutPostgres,
    RestartRedis,
    CrashPostgres,
    KillNode,
    DrainNode,
    FreezeNode,
    FreezeRedis,
    FreezePostgres,
    LoseRedis,
    SlowRedis,
    HalveRedis,
    LosePostgres,
    SlowPostgres,
    BreakPostgres,
    RefusePostgres,
    NarrowClients,
    HalveClients,
    ResetClients,
    BreakClients,
}

const HARMS: [Harm; 21] = [
    Harm::EmptyRedis,
    Harm::CutRedis,
    Harm::CutPostgres,
    Harm::RestartRedis,
    Harm::CrashPostgres,
    Harm::KillNode,
    Harm::DrainNode,
    Harm::FreezeNode,
    Harm::FreezeRedis,
    Harm::FreezePostgres,
    Harm::LoseRedis,
    Harm::SlowRedis,
    Harm::HalveRedis,
    Harm::LosePostgres,
    Harm::SlowPostgres,
    Harm::BreakPostgres,
    Harm::RefusePostgres,
    Harm::NarrowClients,
    Harm::HalveClients,
    Harm::ResetClients,
    Harm::BreakClients,
];

impl Harm {
    /// Its name, with its number in the matrix of faults.
    fn name(self) -> &'static str {
        match self {
            Harm::KillNode => "F1 a node is killed",
            Harm::DrainNode => "F2 a node is drained",
            Harm::FreezeNode => "F3 a node is frozen",
            Harm::RestartRedis => "F4 Redis restarts, empty",
            Harm::EmptyRedis => "F5 Redis is emptied",
            Harm::FreezeRedis => "F6 Redis is frozen",
            Harm::LoseRedis => "F6 a node's Redis swallows everything",
            Harm::SlowRedis => "F7 a node's Redis is slow",
            Harm::CutRedis => "F9 connections to Redis are cut",
            Harm::HalveRedis => "F9 a node hears nothing from Redis",
            Harm::CrashPostgres => "F11 Postgres crashes",
            Harm::CutPostgres => "F11 connections to Postgres are cut",
            Harm::BreakPostgres => "F11 a node's connections to Postgres break off",
            Harm::FreezePostgres => "F14 Postgres is frozen",
            Harm::SlowPostgres => "F14 a node's Postgres is slow",
            Harm::LosePostgres => "F15 a node's Postgres swallows everything",
            Harm::RefusePostgres => "F15 a node's Postgres refuses it",
            Harm::NarrowClients => "F23 a node's clients read slowly",
            Harm::HalveClients => "F24 a node's clients hear nothing",
            Harm::ResetClients => "F25 a node's clients are reset",
            Harm::BreakClients => "F24 a node's clients break off",
        }
    }
}

/// Stopped processes. They go on when this is dropped.
struct Frozen(Vec<u32>);

impl Frozen {
    fn new(pids: Vec<u32>) -> Self {
        signal(&pids, Signal::STOP);
        Frozen(pids)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal(&self.0, Signal::CONT);
    }
}

fn signal(pids: &[u32], signal: Signal) {
    let pids = pids
        .iter()
        .filter_map(|pid| Pid::from_raw(pid.cast_signed()));
    pids.for_each(|pid| {
        kill_process(pid, signal).ok();
    });
}

/// Harms a cluster, and counts its harms by their names.
pub struct Nemesis {
    chance: Chance,
    watch: Watch,
    links: Links,
    /// The start, from which the moments of harms count.
    pub began: Instant,
    pub counts: BTreeMap<&'static str, u64>,
    /// How often two came together.
    pub pairs: u64,
    /// The harms with their moments.
    pub marks: Vec<Mark>,
}

impl Nemesis {
    /// A nemesis of these nodes and their stores.
    pub async fn new(plain: &Plain, links: Links, seed: u64) -> Result<Self> {
        Ok(Nemesis {
            chance: Chance::new(seed),
            watch: Watch::of(&plain.cluster).await?,
            links,
            began: Instant::now(),
            counts: HARMS.map(|harm| (harm.name(), 0)).into(),
            pairs: 0,
            marks: Vec::new(),
        })
    }

    /// The number of harms so far.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Harms once, and mends it. All nodes run afterwards.
    pub async fn strike(&mut self, plain: &mut Plain) -> Result<()> {
        let harms = self.choose();
        // The last node is never ended, so that its memory shows what grows.
        let ends = self.chance.below(plain.cluster.nodes.len() - 1);
        let (mut frozen, mut harmed) = (Vec::new(), Vec::new());
        let down = harms
            .iter()
            .any(|harm| matches!(harm, Harm::KillNode | Harm::DrainNode));
        self.pairs += u64::from(harms.len() > 1);
        for harm in &harms {
            *self.counts.entry(harm.name()).or_default() += 1;
            let n = self.chance.below(plain.cluster.nodes.len());
            match harm {
                Harm::EmptyRedis => tell_redis(plain, "FLUSHALL\r\n").await?,
                Harm::CutRedis => {
                    tell_redis(
                        plain,
                        "CLIENT KILL TYPE pubsub\r\nCLIENT KILL TYPE normal\r\n",
                    )
                    .await?;
                }
                Harm::CutPostgres => cut_postgres(plain).await?,
                Harm::RestartRedis => restart_redis(plain).await?,
                Harm::CrashPostgres => self.crash_postgres(),
                Harm::KillNode => plain.kill(ends),
                Harm::DrainNode => signal(&[plain.cluster.nodes[ends].pid], Signal::TERM),
                Harm::FreezeNode => {
                    // A node that is to end is not stopped on the way.
                    if !down || n != ends {
                        frozen.push(Frozen::new(vec![plain.cluster.nodes[n].pid]));
                    }
                }
                Harm::FreezeRedis => {
                    let redis = Watch::on_redis(Vec::new(), &plain.cluster.redis_url).await?;
                    frozen.push(Frozen::new(vec![redis.redis()]));
                }
                Harm::FreezePostgres => frozen.push(Frozen::new(self.watch.postgres())),
                _ => {
                    if let Some((link, mode)) = self.mode(*harm) {
                        self.links.set(n, link, mode);
                        harmed.push((n, link, mode));
                    }
                }
            }
        }
        let from = self.began.elapsed().as_secs_f64();
        self.wait(HARM_MS).await;
        let until = self.began.elapsed().as_secs_f64();
        let names: Vec<_> = harms.iter().map(|harm| harm.name()).collect();
        let mark = |name: &&'static str| Mark { from, until, name };
        self.marks.extend(names.iter().map(mark));
        let (took, names) = (until - from, names.join(" + "));
        say(format!("{from:>7.1} s, for {took:.1} s: {names}"));
        drop(frozen);
        self.mend(&harmed).await;
        if down {
            restart(plain, ends).await?;
        }
        self.wait(CALM_MS).await;
        Ok(())
    }

    /// The link that a harm concerns, and its mode; none for other harms.
    fn mode(&mut self, harm: Harm) -> Option<(Link, Mode)> {
        let mut between = |[least, most]: [usize; 2]| least + self.chance.below(most - least);
        Some(match harm {
            Harm::LoseRedis => (Link::Redis, Mode::BlackHole),
            Harm::SlowRedis => (Link::Redis, slow(between(DELAY_MS))),
            Harm::HalveRedis => (Link::Redis, Mode::HalfOpen(Way::ToClient)),
            Harm::LosePostgres => (Link::Postgres, Mode::BlackHole),
            Harm::SlowPostgres => (Link::Postgres, slow(between(DELAY_MS))),
            Harm::BreakPostgres => (Link::Postgres, cut(between(CUT_BYTES))),
            Harm::RefusePostgres => (Link::Postgres, Mode::Reset),
            Harm::NarrowClients => {
                let bytes_per_second = u32::try_from(between(RATE_BYTES)).unwrap_or(u32::MAX);
                (Link::Clients, Mode::Rate { bytes_per_second })
            }
            Harm::HalveClients => (Link::Clients, Mode::HalfOpen(Way::ToClient)),
            Harm::ResetClients => (Link::Clients, Mode::Reset),
            Harm::BreakClients => (Link::Clients, cut(between(CUT_BYTES))),
            _ => return None,
        })
    }

    /// Lets links pass again. Half of the clients that heard late or nothing are reset before, so
    /// that they never hear what was under way.
    async fn mend(&mut self, harmed: &[(usize, Link, Mode)]) {
        for (n, link, mode) in harmed {
            let held = matches!(mode, Mode::Rate { .. } | Mode::HalfOpen(_));
            if held && *link == Link::Clients && self.chance.below(2) == 0 {
                self.links.set(*n, *link, Mode::Reset);
                tokio::time::sleep(MODE_PAUSE).await;
            }
            self.links.set(*n, *link, Mode::Pass);
        }
    }

    fn choose(&mut self) -> Vec<Harm> {
        let first = HARMS[self.chance.below(HARMS.len())];
        let mut harms = vec![first];
        if self.chance.below(PAIR_EACH) == 0 {
            harms.push(HARMS[self.chance.below(HARMS.len())]);
        }
        harms.sort();
        harms.dedup();
        // One node ends at a time.
        if harms.contains(&Harm::KillNode) {
            harms.retain(|harm| *harm != Harm::DrainNode);
        }
        // A Redis that is starting has no process to freeze.
        if harms.contains(&Harm::RestartRedis) {
            harms.retain(|harm| *harm != Harm::FreezeRedis);
        }
        harms
    }

    async fn wait(&mut self, [least, most]: [usize; 2]) {
        let ms = least + self.chance.below(most - least);
        tokio::time::sleep(Duration::from_millis(ms as u64)).await;
    }

    /// Kills the process that writes the log: Postgres then ends all others and recovers.
    fn crash_postgres(&self) {
        let is_writer = |pid: &u32| {
            let title = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            title.is_ok_and(|title| title.contains("walwriter"))
        };
        let writer: Vec<u32> = self
            .watch
            .postgres()
            .into_iter()
            .filter(is_writer)
            .collect();
        signal(&writer, Signal::KILL);
    }
}

/// A link that delays everything.
fn slow(ms: usize) -> Mode {
    let least = Duration::from_millis(ms as u64);
    let jitter = least / 2;
    Mode::Delay { least, jitter }
}

/// A link whose connections break off.
fn cut(bytes: usize) -> Mode {
    Mode::CutAfter {
        bytes: bytes as u64,
    }
}

/// Ends Redis, whose supervisor starts it again, and waits until it answers.
async fn restart_redis(plain: &Plain) -> Result<()> {
    let mut stream = redis::connect(&plain.cluster.redis_url).await?;
    stream.write_all(b"SHUTDOWN NOSAVE\r\n").await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await.ok();
    let began = Instant::now();
    while let Err(error) = redis::connect(&plain.cluster.redis_url).await {
        if began.elapsed() > TIMEOUT {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Sends commands to Redis.
async fn tell_redis(plain: &Plain, commands: &str) -> Result<()> {
    let mut stream = redis::connect(&plain.cluster.redis_url).await?;
    stream.write_all(commands.as_bytes()).await?;
    stream.write_all(b"QUIT\r\n").await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await.ok();
    if said.contains('-') {
        return Err(format!("Redis refuses {commands:?}: {said}").into());
    }
    Ok(())
}

/// Ends all connections to the database. A Postgres that recovers is waited for.
async fn cut_postgres(plain: &Plain) -> Result<()> {
    let began = Instant::now();
    let cut = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()";
    loop {
        let connected = tokio_postgres::connect(&plain.cluster.postgres_url, NoTls).await;
        let error = match connected {
            Ok((client, link)) => {
                tokio::spawn(link);
                match client.execute(cut, &[]).await {
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        if began.elapsed() > TIMEOUT {
            return Err(error.into());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for the end of a node and starts it again. A node that meets a store in recovery ends, and
/// is started once more.
async fn restart(plain: &mut Plain, n: usize) -> Result<()> {
    let began = Instant::now();
    while !plain.has_ended(n) {
        if began.elapsed() > TIMEOUT {
            return Err(format!("node {n} does not end").into());
        }
        tokio::time::sleep(PAUSE).await;
    }
    while let Err(error) = plain.restart(n).await {
        if began.elapsed() > TIMEOUT {
            return Err(error);
        }
        say(format!("node {n} is started again: {error}"));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
