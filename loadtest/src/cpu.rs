//! The processor time of the nodes, Postgres, Redis, and this program itself.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_postgres::NoTls;

use crate::{Result, cluster::Cluster, redis};

/// The percentage of the machine that other programs may use before a measurement counts as
/// disturbed.
const DISTURBANCE: f64 = 5.0;

/// The watched processes.
pub struct Watch {
    nodes: Vec<u32>,
    /// The process id, or 0 if there is none.
    postmaster: u32,
    redis: u32,
}

/// The anonymous resident memory of these processes, in KiB. The kernel drops and reads pages of
/// files as it likes, so these do not count.
pub fn anonymous(pids: &[u32]) -> Result<f64> {
    let mut kib = 0.0;
    for pid in pids {
        let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        kib += number.ok_or("no RssAnon in /proc")?.parse::<f64>()?;
    }
    Ok(kib)
}

/// Processor time used so far, in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Used {
    pub nodes: Vec<f64>,
    pub postgres: f64,
    pub redis: f64,
    /// This program and its child processes.
    pub client: f64,
    /// All other programs on this machine, and time that its host took: noise.
    pub others: f64,
    /// The elapsed time.
    pub seconds: f64,
}

impl Watch {
    /// Finds the processes of a cluster.
    pub async fn of(cluster: &Cluster) -> Result<Self> {
        let nodes = cluster.nodes.iter().map(|node| node.pid).collect();
        Ok(Watch {
            nodes,
            postmaster: postmaster(cluster).await?,
            redis: redis(&cluster.redis_url).await?,
        })
    }

    /// A watch for other programs on a Redis.
    pub async fn on_redis(nodes: Vec<u32>, url: &str) -> Result<Self> {
        Ok(Watch {
            redis: redis(url).await?,
            ..Self::alone(nodes)
        })
    }

    /// A watch for programs without Postgres and Redis.
    pub fn alone(nodes: Vec<u32>) -> Self {
        Watch {
            nodes,
            postmaster: 0,
            redis: 0,
        }
    }

    /// The processes of Postgres, the first of them before its children.
    pub fn postgres(&self) -> Vec<u32> {
        let all = all_processes();
        let backends = all.iter().filter(|(_, one)| one.parent == self.postmaster);
        std::iter::once(self.postmaster)
            .chain(backends.map(|(pid, _)| *pid))
            .collect()
    }

    /// The process of Redis.
    pub fn redis(&self) -> u32 {
        self.redis
    }

    /// The time used until now.
    pub fn now(&self) -> Used {
        let all = all_processes();
        let alone = |pid: &u32| all.get(pid).map_or(0.0, |process| process.used);
        // Backends come and go. The postmaster inherits the time of ended ones.
        let backends = all
            .values()
            .filter(|process| self.postmaster != 0 && process.parent == self.postmaster);
        let postmaster = all
            .get(&self.postmaster)
            .map_or(0.0, |process| process.used + process.inherited);
        let mut used = Used {
            nodes: self.nodes.iter().map(alone).collect(),
            postgres: postmaster + backends.map(|process| process.used).sum::<f64>(),
            redis: alone(&self.redis),
            // Ended child processes (pgbench) count as this program's time.
            client: all
                .get(&std::process::id())
                .map_or(0.0, |process| process.used + process.inherited),
            others: 0.0,
            seconds: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
        };
        let ours = used.nodes.iter().sum::<f64>() + used.postgres + used.redis + used.client;
        used.others = machine() - ours;
        used
    }

    /// Waits until other programs leave the machine idle for a second, up to a limit.
    pub async fn quiet(&self) {
        for _ in 0..60 {
            let before = self.now();
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.now().since(&before).others_percent() < DISTURBANCE {
                return;
            }
        }
    }
}

/// The remark on a run in which other programs used this percentage of the machine.
pub fn remark(others_percent: f64) -> Option<String> {
    (others_percent > DISTURBANCE).then(|| {
        format!(
            "Others had up to {others_percent:.0} % of this machine in a phase: throughput and times are theirs too. \
             CPU per message suffers less."
        )
    })
}

impl Used {
    /// The time used since `before`.
    pub fn since(&self, before: &Used) -> Used {
        Used {
            nodes: self
                .nodes
                .iter()
                .zip(&before.nodes)
                .map(|(now, then)| now - then)
                .collect(),
            postgres: self.postgres - before.postgres,
            redis: self.redis - before.redis,
            client: self.client - before.client,
            others: self.others - before.others,
            seconds: self.seconds - before.seconds,
        }
    }

    /// The sum of both.
    pub fn and(&self, other: &Used) -> Used {
        Used {
            nodes: self
                .nodes
                .iter()
                .zip(&other.nodes)
                .map(|(one, other)| one + other)
                .collect(),
            postgres: self.postgres + other.postgres,
            redis: self.redis + other.redis,
            client: self.client + other.client,
            others: self.others + other.others,
            seconds: self.seconds + other.seconds,
        }
    }

    /// The time used in a second: processors.
    pub fn per_second(&self) -> Used {
        let each = |used: f64| used / self.seconds.max(0.001);
        Used {
            nodes: self.nodes.iter().copied().map(each).collect(),
            postgres: each(self.postgres),
            redis: each(self.redis),
            client: each(self.client),
            others: each(self.others),
            seconds: 1.0,
        }
    }

    /// The percentage of the machine that other programs used.
    pub fn others_percent(&self) -> f64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        100.0 * self.others.max(0.0) / (self.seconds.max(0.001) * cores as f64)
    }
}

/// The busy seconds of the machine's processors: the first line of `/proc/stat` without its fourth
/// and fifth number. Numbers from the ninth on are counted twice there.
fn machine() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let numbers = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .take(8)
        .enumerate();
    let busy = numbers
        .filter(|(n, _)| !matches!(n, 3 | 4))
        .filter_map(|(_, number)| number.parse::<f64>().ok());
    busy.sum::<f64>() / rustix::param::clock_ticks_per_second() as f64
}

struct Process {
    parent: u32,
    used: f64,
    inherited: f64,
}

fn all_processes() -> HashMap<u32, Process> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        Some((
            pid,
            read(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?,
        ))
    })
    .collect()
}

/// Parses a line of `/proc/<pid>/stat`. The name, in brackets, may contain anything.
fn read(stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let seconds = |n: usize| -> Option<f64> {
        Some(fields.get(n)?.parse::<f64>().ok()? / rustix::param::clock_ticks_per_second() as f64)
    };
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        used: seconds(11)? + seconds(12)?,
        inherited: seconds(13)? + seconds(14)?,
    })
}

async fn postmaster(cluster: &Cluster) -> Result<u32> {
    let (client, link) = tokio_postgres::connect(&cluster.postgres_url, NoTls).await?;
    let link = tokio::spawn(link);
    let backend: i32 = client
        .query_one("select pg_backend_pid()", &[])
        .await?
        .get(0);
    let stat = fs::read_to_string(format!("/proc/{backend}/stat"))?;
    drop(client);
    link.await??;
    Ok(read(&stat).ok_or("cannot read /proc")?.parent)
}

async fn redis(url: &str) -> Result<u32> {
    let mut stream = redis::connect(url).await?;
    stream.write_all(b"INFO server\r\nQUIT\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let pid = text
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    Ok(pid
        .ok_or("Redis does not tell its process")?
        .trim()
        .parse()?)
}
