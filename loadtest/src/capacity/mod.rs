//! `loadtest capacity`: the needs of a cluster for a load, by arithmetic over measured costs ([`costs`]).
//!
//! The arithmetic adds up processor time, memory and bytes. It says nothing about delays, and the
//! machines that were measured are not yours: half or double is within its aim.

mod costs;
#[cfg(test)]
mod recorded;

use std::fmt;

use clap::Parser;

use self::costs::Cost;
use crate::report::say;

/// The part of its processors that a server may use at the peak. The rest is for failovers,
/// deployments and bad minutes.
const MAX_UTILISATION: f64 = 0.6;
/// Messages of a user on a day, if nobody says how many.
const MESSAGES_PER_USER_AND_DAY: f64 = 20.0;
/// The peak as a multiple of the mean.
const PEAK_TO_MEAN: f64 = 3.0;
/// Life of a socket, for the rate of connects.
const SOCKET_LIFE_SECONDS: f64 = 3600.0;
/// `MAX_SOCKETS` of a node.
const MAX_NODE_SOCKETS: f64 = 20_000.0;
/// Connections to Postgres of a node with the default settings, all in use: 8 main, 2 for sends, 3
/// for the sweep, 3 for jobs, 2 for tokens, 6 for webhooks.
const NODE_CONNECTIONS: f64 = 24.0;
/// Recipients that the cost of a message contains.
const MESSAGE_RECIPIENTS: f64 = 2.0;
/// Days that entries of an inbox are kept.
const ENTRY_DAYS: f64 = 30.0;
const DAY_SECONDS: f64 = 86_400.0;
const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;
/// Bytes around a payload: of a request with its headers, and of an event in its frame.
const REQUEST_BYTES: f64 = 700.0;
const EVENT_BYTES: f64 = 500.0;

/// Prints what a cluster needs for a load, by arithmetic over measured costs.
#[derive(Parser)]
pub struct Capacity {
    #[command(flatten)]
    load: Load,
    /// Print the measured costs as a Markdown table instead
    #[arg(long)]
    costs: bool,
}

impl Capacity {
    /// Prints the answer.
    pub fn run(&self) {
        if self.costs {
            say(costs::as_markdown().trim_end());
        } else {
            say(need(&self.load).to_string().trim_end());
        }
    }
}

/// The load at the peak.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// Users of the deployment
    #[arg(long, default_value_t = 10_000)]
    pub users: u64,
    /// Durable messages per second at the peak [default: 20 per user and day, at three times the
    /// mean]
    #[arg(long)]
    pub messages_per_second: Option<f64>,
    /// Share of the users that have a socket at the peak
    #[arg(long, default_value_t = 0.2)]
    pub online: f64,
    /// Inboxes that a message reaches, in the mean
    #[arg(long, default_value_t = 2.0)]
    pub recipients: f64,
    /// Bytes of a payload, in the mean
    #[arg(long, default_value_t = 1024.0)]
    pub payload_bytes: f64,
    /// Deliveries by webhook per second at the peak
    #[arg(long, default_value_t = 0.0)]
    pub webhooks_per_second: f64,
    /// Cores of a node
    #[arg(long, default_value_t = 4.0)]
    pub node_cores: f64,
}

impl Load {
    /// Durable messages per second at the peak.
    pub fn messages(&self) -> f64 {
        let mean = self.users as f64 * MESSAGES_PER_USER_AND_DAY / DAY_SECONDS;
        self.messages_per_second.unwrap_or(mean * PEAK_TO_MEAN)
    }

    /// Sockets at the peak.
    pub fn sockets(&self) -> f64 {
        self.users as f64 * self.online
    }

    /// Events per second that reach an inbox, whether its owner is online or not.
    fn deliveries(&self) -> f64 {
        self.messages() * self.recipients
    }

    /// The part of them that a message's own cost does not contain.
    fn further_deliveries(&self) -> f64 {
        self.messages() * (self.recipients - MESSAGE_RECIPIENTS).max(0.0)
    }
}

/// Busy cores of the three parts.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// All nodes together.
    pub nodes: f64,
    pub postgres: f64,
    pub redis: f64,
}

/// Messages of a transaction, where each of `nodes` gets its part of the sends.
pub fn batch(messages_per_second: f64, nodes: f64) -> f64 {
    1.0 + messages_per_second / nodes * Cost::CommitTime.seconds()
}

/// The busy cores of a load on so many nodes.
pub fn cores(load: &Load, nodes: f64) -> Cores {
    let messages = load.messages();
    let batches = messages / batch(messages, nodes);
    let connects = load.sockets() / SOCKET_LIFE_SECONDS;
    let busy = |[
        per_batch,
        per_message,
        per_delivery,
        per_connect,
        per_socket,
        per_webhook,
    ]: [Cost; 6],
                deliveries: f64| {
        batches * per_batch.seconds()
            + messages * per_message.seconds()
            + deliveries * per_delivery.seconds()
            + connects * per_connect.seconds()
            + load.sockets() * per_socket.seconds()
            + load.webhooks_per_second * per_webhook.seconds()
    };
    Cores {
        nodes: busy(costs::OF_NODES, load.deliveries()),
        postgres: busy(costs::OF_POSTGRES, load.further_deliveries()),
        redis: busy(costs::OF_REDIS, load.deliveries()),
    }
}

/// The needs of a load.
#[derive(Clone, Debug)]
pub struct Need {
    pub sockets: f64,
    pub messages_per_second: f64,
    /// With one to spare, so that a node may be lost or replaced at the peak.
    pub nodes: u64,
    /// Busy at the peak.
    pub cores: Cores,
    /// Memory of a node's sockets and of the node itself.
    pub node_gib: f64,
    pub postgres_connections: f64,
    pub transactions_per_second: f64,
    /// Written ahead by Postgres.
    pub wal_mib_per_second: f64,
    /// Added for good by a year of messages.
    pub messages_gib_per_year: f64,
    /// Entries of inboxes, which are kept for a month.
    pub entries_gib: f64,
    pub redis_shards: u64,
    pub redis_gib: f64,
    pub redis_mib_per_second: f64,
    /// Between clients and nodes.
    pub network_in_mib_per_second: f64,
    pub network_out_mib_per_second: f64,
}

/// No search goes beyond this, where a load is not a number.
const MAX_SEARCHED: u64 = 1 << 40;

/// The least number, from 1 on, for which a condition holds. The condition holds for all that are
/// greater.
fn least(holds: impl Fn(u64) -> bool) -> u64 {
    let mut high = 1;
    while !holds(high) && high < MAX_SEARCHED {
        high *= 2;
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low.midpoint(high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// The needs of a load.
pub fn need(load: &Load) -> Need {
    let (messages, sockets) = (load.messages(), load.sockets());
    let suffices = |n: u64| {
        let nodes = n as f64;
        cores(load, nodes).nodes / nodes <= load.node_cores * MAX_UTILISATION
            && sockets / nodes <= MAX_NODE_SOCKETS
    };
    let nodes = least(suffices) + 1;
    let n = nodes as f64;
    let busy = cores(load, n);
    let body = load.payload_bytes + EVENT_BYTES;
    // A message on Redis goes to each node that serves a recipient elsewhere.
    let elsewhere = load.recipients.min(n - 1.0);
    let stored = messages / PEAK_TO_MEAN * DAY_SECONDS;
    let wal = messages * (Cost::MessageWal.bytes() + load.payload_bytes)
        + load.further_deliveries() * Cost::DeliveryWal.bytes();
    Need {
        sockets,
        messages_per_second: messages,
        nodes,
        cores: busy,
        node_gib: (Cost::NodeMemory.bytes() + sockets / (n - 1.0) * Cost::SocketMemory.bytes())
            / GIB,
        postgres_connections: n * NODE_CONNECTIONS,
        transactions_per_second: messages / batch(messages, n)
            + sockets * Cost::SocketTransactions.row().1
            + n * Cost::NodeTransactions.row().1,
        wal_mib_per_second: wal / MIB,
        messages_gib_per_year: stored * 365.0 * (Cost::MessageDisk.bytes() + load.payload_bytes)
            / GIB,
        entries_gib: stored * ENTRY_DAYS * load.recipients * Cost::EntryDisk.bytes() / GIB,
        redis_shards: least(|n| busy.redis / n as f64 <= MAX_UTILISATION),
        redis_gib: sockets * Cost::SocketRedisMemory.bytes() / GIB,
        redis_mib_per_second: messages * elsewhere * body * 2.0 / MIB,
        network_in_mib_per_second: messages * (load.payload_bytes + REQUEST_BYTES) / MIB,
        network_out_mib_per_second: load.deliveries() * body / MIB,
    }
}

/// The bounds beyond which a cluster needs another shape, each with what passes it.
fn walls(need: &Need) -> Vec<&'static str> {
    let walls = [
        (
            need.cores.postgres > 32.0 || need.wal_mib_per_second > 200.0,
            "Postgres: one server does not write this. More than one database: docs/roadmap.md.",
        ),
        (
            need.messages_gib_per_year + need.entries_gib > 16.0 * 1024.0,
            "Disk: a year is more than one server of Postgres should hold. More than one database: docs/roadmap.md.",
        ),
        (
            need.postgres_connections > 500.0,
            "Connections: put PgBouncer in transaction mode before Postgres.",
        ),
        (
            need.redis_shards > 1,
            "Redis: one core does not do this. A cluster of Redis takes the shards.",
        ),
        (
            need.nodes > 100,
            "Nodes: more than a hundred were never simulated. Control messages go to all of them.",
        ),
    ];
    walls
        .into_iter()
        .filter_map(|(is_passed, wall)| is_passed.then_some(wall))
        .collect()
}

impl Need {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let Cores {
            nodes,
            postgres,
            redis,
        } = self.cores;
        let spare = |busy: f64| format!("{busy:.2} busy, give {:.1}", busy / MAX_UTILISATION);
        vec![
            (
                "load",
                format!(
                    "{:.0} sockets, {:.1} messages/s",
                    self.sockets, self.messages_per_second
                ),
            ),
            ("nodes", format!("{}, one of them to spare", self.nodes)),
            ("CPU of all nodes, cores", spare(nodes)),
            ("memory of a node", format!("{:.1} GiB", self.node_gib)),
            ("Postgres, cores", spare(postgres)),
            (
                "Postgres, connections and transactions",
                format!(
                    "{:.0}, {:.0}/s",
                    self.postgres_connections, self.transactions_per_second
                ),
            ),
            (
                "Postgres, write-ahead log",
                format!("{:.1} MiB/s", self.wal_mib_per_second),
            ),
            (
                "Postgres, disk",
                format!(
                    "{:.0} GiB a year of messages, {:.0} GiB of entries",
                    self.messages_gib_per_year, self.entries_gib
                ),
            ),
            (
                "Redis, cores",
                format!("{} in {} shards", spare(redis), self.redis_shards),
            ),
            (
                "Redis, memory and traffic",
                format!(
                    "{:.1} GiB, {:.1} MiB/s",
                    self.redis_gib, self.redis_mib_per_second
                ),
            ),
            (
                "network of clients",
                format!(
                    "{:.1} MiB/s in, {:.1} MiB/s out",
                    self.network_in_mib_per_second, self.network_out_mib_per_second
                ),
            ),
        ]
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, value) in self.rows() {
            writeln!(f, "{what:<40}{value}")?;
        }
        for wall in walls(self) {
            writeln!(f, "{wall}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(users: u64) -> Load {
        Load {
            users,
            messages_per_second: None,
            online: 0.2,
            recipients: 2.0,
            payload_bytes: 1024.0,
            webhooks_per_second: 0.0,
            node_cores: 4.0,
        }
    }

    /// Every figure of a need.
    fn figures(need: &Need) -> [f64; 16] {
        let Need {
            sockets,
            messages_per_second,
            nodes,
            cores,
            node_gib: _,
            postgres_connections,
            transactions_per_second,
            wal_mib_per_second,
            messages_gib_per_year,
            entries_gib,
            redis_shards,
            redis_gib,
            redis_mib_per_second,
            network_in_mib_per_second,
            network_out_mib_per_second,
        } = *need;
        [
            sockets,
            messages_per_second,
            nodes as f64,
            cores.nodes,
            cores.postgres,
            cores.redis,
            postgres_connections,
            transactions_per_second,
            wal_mib_per_second,
            messages_gib_per_year,
            entries_gib,
            redis_shards as f64,
            redis_gib,
            redis_mib_per_second,
            network_in_mib_per_second,
            network_out_mib_per_second,
        ]
    }

    #[test]
    fn more_of_anything_never_needs_less() {
        type More = fn(&mut Load, f64);
        let more: [More; 6] = [
            |load, _| load.users = load.users * 2 + 1,
            |load, by| load.messages_per_second = Some(load.messages() * by),
            |load, by| load.online = (load.online * by).min(1.0),
            |load, by| load.recipients *= by,
            |load, by| load.payload_bytes *= by,
            |load, by| load.webhooks_per_second = (load.webhooks_per_second + 1.0) * by,
        ];
        for users in [0, 1, 9_999, 1_000_000, 100_000_000] {
            for more in more {
                let mut load = load(users);
                let mut before = figures(&need(&load));
                for by in [1.001, 1.1, 2.0, 10.0] {
                    more(&mut load, by);
                    let after = figures(&need(&load));
                    for (n, (before, after)) in before.into_iter().zip(after).enumerate() {
                        assert!(after >= before * 0.999_999, "figure {n} of {load:?}");
                    }
                    before = after;
                }
            }
        }
    }

    #[test]
    fn a_node_may_always_be_lost() {
        for users in [0, 10_000, 1_000_000] {
            let load = load(users);
            let need = need(&load);
            let left = (need.nodes - 1) as f64;
            assert!(need.nodes >= 2);
            assert!(need.sockets / left <= MAX_NODE_SOCKETS);
            assert!(cores(&load, left).nodes / left <= load.node_cores * MAX_UTILISATION);
        }
    }

    #[test]
    fn walls_are_said_where_they_stand() {
        assert!(walls(&need(&load(10_000))).is_empty());
        assert!(walls(&need(&load(100_000_000))).len() >= 4);
    }
}
