//! The nemesis: it harms nodes, Postgres and Redis while clients act. A seed repeats its choices, not
//! their moments.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use history::Chance;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::NoTls;

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

/// What goes wrong. They are done in this order if two come together: the first ones need a store
/// that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    EmptyRedis,
    CutRedis,
    CutPostgres,
    CrashPostgres,
    KillNode,
    DrainNode,
    FreezeNode,
    FreezeRedis,
    FreezePostgres,
}

const HARMS: [Harm; 9] = [
    Harm::EmptyRedis,
    Harm::CutRedis,
    Harm::CutPostgres,
    Harm::CrashPostgres,
    Harm::KillNode,
    Harm::DrainNode,
    Harm::FreezeNode,
    Harm::FreezeRedis,
    Harm::FreezePostgres,
];

impl Harm {
    fn name(self) -> &'static str {
        match self {
            Harm::EmptyRedis => "times that Redis was emptied",
            Harm::CutRedis => "times that connections to Redis were cut",
            Harm::CutPostgres => "times that connections to Postgres were cut",
            Harm::CrashPostgres => "crashes of Postgres",
            Harm::KillNode => "nodes killed",
            Harm::DrainNode => "nodes drained",
            Harm::FreezeNode => "nodes frozen",
            Harm::FreezeRedis => "times that Redis was frozen",
            Harm::FreezePostgres => "times that Postgres was frozen",
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
    pub counts: BTreeMap<&'static str, u64>,
}

impl Nemesis {
    /// A nemesis of these nodes and their stores.
    pub async fn new(plain: &Plain, seed: u64) -> Result<Self> {
        Ok(Nemesis {
            chance: Chance::new(seed),
            watch: Watch::of(&plain.cluster).await?,
            counts: HARMS.map(|harm| (harm.name(), 0)).into(),
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
        let (mut frozen, mut down) = (Vec::new(), false);
        for harm in &harms {
            *self.counts.entry(harm.name()).or_default() += 1;
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
                Harm::CrashPostgres => self.crash_postgres(),
                Harm::KillNode => {
                    plain.kill(ends);
                    down = true;
                }
                Harm::DrainNode => {
                    signal(&[plain.cluster.nodes[ends].pid], Signal::TERM);
                    down = true;
                }
                Harm::FreezeNode => {
                    let n = self.chance.below(plain.cluster.nodes.len());
                    // A node that is to end is not stopped on the way.
                    if !down || n != ends {
                        frozen.push(Frozen::new(vec![plain.cluster.nodes[n].pid]));
                    }
                }
                Harm::FreezeRedis => frozen.push(Frozen::new(vec![self.watch.redis()])),
                Harm::FreezePostgres => frozen.push(Frozen::new(self.watch.postgres())),
            }
        }
        self.wait(HARM_MS).await;
        drop(frozen);
        if down {
            restart(plain, ends).await?;
        }
        self.wait(CALM_MS).await;
        Ok(())
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
