//! A Redis Cluster of three masters, for tests.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::RedisServer;
use crate::{
    account::Account,
    error::{Context, DevError, Result},
    files::{make_folder, write_secret},
    process::POLL_INTERVAL,
    random,
    toolset::Toolset,
};

const MASTERS: u16 = 3;
const SLOTS: u16 = 16384;
const DEADLINE: Duration = Duration::from_secs(20);

/// Three running masters that share all hash slots. Dropping it stops them.
#[derive(Debug)]
pub struct RedisCluster {
    /// The masters, in the order of their hash slots.
    pub masters: Vec<RedisServer>,
    password: String,
}

impl RedisCluster {
    /// Starts the masters, each in a folder of its own under `folder`, and joins them.
    pub fn start(tools: &Toolset, account: &Account, folder: &Path) -> Result<Self> {
        make_folder(folder, 0o711)?;
        let password = random::base62(40);
        let mut masters = Vec::new();
        for n in 1..=MASTERS {
            let own = folder.join(n.to_string());
            make_folder(&own, 0o711)?;
            write_secret(&own.join("password"), &password)?;
            masters.push(RedisServer::start_master(tools, account, &own)?);
        }
        let cluster = RedisCluster { masters, password };
        cluster.join()?;
        Ok(cluster)
    }

    /// The URL `redis-cluster://...`, which names all masters.
    pub fn url(&self) -> String {
        let address = |master: &RedisServer| format!("127.0.0.1:{}", master.port());
        let others: Vec<String> = self
            .masters
            .iter()
            .skip(1)
            .map(|master| format!("node={}", address(master)))
            .collect();
        let first = self.masters.first().map(address).unwrap_or_default();
        format!(
            "redis-cluster://:{}@{first}?{}",
            self.password,
            others.join("&")
        )
    }

    fn join(&self) -> Result<()> {
        let share = SLOTS / MASTERS;
        for (n, master) in (0..).zip(&self.masters) {
            let last = if n + 1 == MASTERS {
                SLOTS - 1
            } else {
                (n + 1) * share - 1
            };
            self.send_until(
                master,
                &format!("CLUSTER ADDSLOTSRANGE {} {last}", n * share),
                "+OK",
            )?;
            if let Some(first) = self.masters.first().filter(|_| n > 0) {
                self.send_until(
                    master,
                    &format!("CLUSTER MEET 127.0.0.1 {}", first.port()),
                    "+OK",
                )?;
            }
        }
        for master in &self.masters {
            for sign in ["cluster_state:ok", "cluster_known_nodes:3"] {
                self.send_until(master, "CLUSTER INFO", sign)?;
            }
        }
        Ok(())
    }

    /// Repeats a command until the answer contains `expected`.
    fn send_until(&self, master: &RedisServer, command: &str, expected: &str) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let answer = self
                .send(master, command)
                .with_context(|| format!("ask Redis on port {}", master.port()))?;
            if answer.contains(expected) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(DevError::new(format!(
                    "the Redis cluster does not come up: {answer}"
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn send(&self, master: &RedisServer, command: &str) -> std::io::Result<String> {
        let mut stream =
            TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, master.port())))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(format!("AUTH {}\r\n{command}\r\nQUIT\r\n", self.password).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        // The answer follows that of AUTH.
        Ok(answer
            .split_once("\r\n")
            .map_or_else(String::new, |(_, rest)| rest.to_owned()))
    }
}
