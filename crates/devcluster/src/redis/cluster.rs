//! A Redis Cluster of three masters, for tests.

use std::{path::Path, time::Duration};

use super::RedisServer;
use crate::{
    account::Account,
    error::{Context, DevError, Result},
    files::{make_folder, write_secret},
    process::Process,
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
            masters.push(RedisServer::start_clustered(tools, account, &own)?);
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
            let slots = format!("CLUSTER ADDSLOTSRANGE {} {last}", n * share);
            master.send_until(&slots, "+OK", DEADLINE)?;
            if n > 0 {
                self.meet(master)?;
            }
        }
        for master in &self.masters {
            for sign in ["cluster_state:ok", "cluster_known_nodes:3"] {
                master.send_until("CLUSTER INFO", sign, DEADLINE)?;
            }
        }
        Ok(())
    }

    fn meet(&self, server: &RedisServer) -> Result<()> {
        let first = self.masters.first().map_or(0, RedisServer::port);
        let command = format!("CLUSTER MEET 127.0.0.1 {first}");
        server.send_until(&command, "+OK", DEADLINE)
    }

    /// Starts a replica of a master. The cluster promotes it a few seconds after the master's end.
    pub fn replica_of(&self, master: &RedisServer) -> Result<RedisServer> {
        let own = master.folder.with_extension("replica");
        make_folder(&own, 0o711)?;
        write_secret(&own.join("password"), &self.password)?;
        let replica = RedisServer::start_clustered(&master.tools, &master.account, &own)?;
        self.meet(&replica)?;
        let id = id_of(master)?;
        replica.send_until("CLUSTER NODES", &id, DEADLINE)?;
        replica.send_until(&format!("CLUSTER REPLICATE {id}"), "+OK", DEADLINE)?;
        replica.send_until("INFO replication", "master_link_status:up", DEADLINE)?;
        for master in &self.masters {
            let sign = format!("slave {id}");
            master.send_until("CLUSTER NODES", &sign, DEADLINE)?;
        }
        Ok(replica)
    }

    /// Moves nearly all hash slots of a master, with their keys, to the others, one by one. A master
    /// without any would have no vote when another dies.
    pub fn move_slots_from(&self, master: &RedisServer) -> Result<()> {
        let id = id_of(master)?;
        let mut command = master.tools.command("redis-cli", "TERM", &master.account);
        command.env("REDISCLI_AUTH", &self.password);
        command
            .args(["--cluster", "rebalance"])
            .arg(format!("127.0.0.1:{}", master.port()))
            .args(["--cluster-weight", &format!("{id}=0.05")])
            .args(["--cluster-threshold", "1", "--cluster-pipeline", "100"]);
        let output = Process::output(command)?;
        if output.status.success() {
            return Ok(());
        }
        Err(DevError::new(format!(
            "the slots were not moved:\n{}",
            String::from_utf8_lossy(&output.stdout)
        )))
    }
}

fn id_of(server: &RedisServer) -> Result<String> {
    let said = server
        .send("CLUSTER MYID")
        .with_context(|| format!("ask Redis on port {}", server.port()))?;
    let id = said.lines().nth(1).unwrap_or_default();
    Ok(id.trim().to_owned())
}
