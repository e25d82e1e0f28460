//! A Redis with a replica, and three sentinels that choose the master. For tests.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::{Mode, RedisServer, random_port};
use crate::{
    account::Account,
    error::{Context, DevError, Result},
    files::{make_folder, write_secret},
    process::POLL_INTERVAL,
    random,
    toolset::Toolset,
};

/// The name of the service, which the URL names as well.
pub(super) const SERVICE: &str = "blindpipe";
const SENTINELS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(20);

/// Two servers and their running sentinels. Dropping it stops them.
#[derive(Debug)]
pub struct RedisSentinels {
    /// The first master and its replica.
    pub servers: [RedisServer; 2],
    pub sentinels: Vec<RedisServer>,
    password: String,
}

impl RedisSentinels {
    /// Starts all, each in a folder of its own under `folder`, and waits until the sentinels know
    /// each other and the replica.
    pub fn start(tools: &Toolset, account: &Account, folder: &Path) -> Result<Self> {
        make_folder(folder, 0o711)?;
        let password = random::base62(40);
        let server = |name: &str, mode: Mode| {
            let own = folder.join(name);
            make_folder(&own, 0o711)?;
            write_secret(&own.join("password"), &password)?;
            RedisServer::start_as(tools, account, &own, random_port(), mode)
        };
        let master = server("master", Mode::Replicated)?;
        let replica = server("replica", Mode::Replicated)?;
        let command = format!("REPLICAOF 127.0.0.1 {}", master.port());
        replica.send_until(&command, "+OK", DEADLINE)?;
        replica.send_until("INFO replication", "master_link_status:up", DEADLINE)?;
        let watched = Mode::Sentinel {
            master: master.port(),
        };
        let mut sentinels = Vec::new();
        for n in 1..=SENTINELS {
            sentinels.push(server(&format!("sentinel-{n}"), watched)?);
        }
        for sentinel in &sentinels {
            let command = format!("SENTINEL MASTER {SERVICE}");
            sentinel.send_until(&command, "num-other-sentinels\r\n$1\r\n2", DEADLINE)?;
            sentinel.send_until(&command, "num-slaves\r\n$1\r\n1", DEADLINE)?;
        }
        Ok(RedisSentinels {
            servers: [master, replica],
            sentinels,
            password,
        })
    }

    /// The URL `redis-sentinel://...`, which names all sentinels.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port()))
            .collect();
        let password = &self.password;
        format!(
            "redis-sentinel://:{password}@{}/0?sentinelServiceName={SERVICE}&sentinelPassword={password}&node={}",
            addresses.first().map_or("", String::as_str),
            addresses.get(1..).unwrap_or_default().join("&node=")
        )
    }

    /// Waits until every sentinel names the server with this port as the master.
    pub fn until_master_is(&self, port: u16) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        let sign = format!("\r\n{port}\r\n");
        let command = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {SERVICE}");
        for sentinel in &self.sentinels {
            while !sentinel
                .send(&command)
                .is_ok_and(|said| said.contains(&sign))
            {
                if Instant::now() > deadline {
                    return Err(DevError::new("the sentinels choose no other master"));
                }
                thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Changes the master to the server with this port, as planned. A sentinel gives up while that
    /// server is a replica since a moment only, and is asked again.
    pub fn fail_over_to(&self, port: u16) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        let sign = format!("\r\nport\r\n$5\r\n{port}\r\n");
        let ask = |command: &str| {
            let first = self.sentinels.first();
            first.map_or(Ok(sign.clone()), |sentinel| {
                let command = format!("SENTINEL {command} {SERVICE}");
                let answer = sentinel.send(&command);
                answer.with_context(|| "ask a sentinel".into())
            })
        };
        loop {
            let state = ask("MASTER")?;
            if state.contains(&sign) {
                return self.until_master_is(port);
            }
            if Instant::now() > deadline {
                return Err(DevError::new("the sentinels do not change the master"));
            }
            if !state.contains("failover_in_progress") {
                ask("FAILOVER")?;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}
