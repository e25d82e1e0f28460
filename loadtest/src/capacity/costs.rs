//! The measured costs, each with the command that measures it. The machine had two cores that
//! everything shared; `loadtest/README.md` names it.

use blindpipe_protocol::catalogue;

const SEND: &str = "loadtest send";
const SWEEP: &str = "loadtest sweep --nodes 5 --sockets 10000 --members 500";
const FANOUT: &str = "loadtest fanout";
const WEBHOOKS: &str = "loadtest webhooks";
const IDLE: &str = "loadtest idle";
const SIZE: &str = "loadtest size --rows 10000000";
const STATEMENTS: &str = "docs/measurements.md, WAL per statement";
const BUDGET: &str = "paper: budgets of buffers, and some more";
const PAPER: &str = "paper: keys of the directory and the slots";

catalogue! {
    /// The costs: (what, value, unit, source).
    pub enum Cost: (&'static str, f64, &'static str, &'static str) {
        CommitTime           = ("commit of a busy node, which gathers the next batch", 2.0, "ms", SEND);
        NodeBatch            = ("node, a batch of sends", 230.0, "µs", SEND);
        NodeMessage          = ("node, a message", 39.0, "µs", SEND);
        NodeDelivery         = ("node, a delivery to a socket", 3.5, "µs", FANOUT);
        NodeConnect          = ("node, a connect", 280.0, "µs", IDLE);
        NodeSocket           = ("node, an idle socket, each second", 3.0, "µs", SWEEP);
        NodeWebhook          = ("node, a delivery by webhook", 65.0, "µs", WEBHOOKS);
        PostgresBatch        = ("Postgres, a batch of sends", 580.0, "µs", SEND);
        PostgresMessage      = ("Postgres, a message to two inboxes", 41.0, "µs", SEND);
        PostgresDelivery     = ("Postgres, a further inbox of a message", 2.9, "µs", FANOUT);
        PostgresConnect      = ("Postgres, a connect", 300.0, "µs", SWEEP);
        PostgresSocket       = ("Postgres, an idle socket, each second", 1.8, "µs", SWEEP);
        PostgresWebhook      = ("Postgres, a delivery by webhook", 182.0, "µs", WEBHOOKS);
        RedisBatch           = ("Redis, a batch of sends", 90.0, "µs", SEND);
        RedisMessage         = ("Redis, a message and its limits", 11.0, "µs", SEND);
        RedisDelivery        = ("Redis, a recipient that is looked up", 0.91, "µs", FANOUT);
        RedisConnect         = ("Redis, a connect", 77.0, "µs", SWEEP);
        RedisSocket          = ("Redis, an idle socket, each second", 0.9, "µs", SWEEP);
        RedisWebhook         = ("Redis, a delivery by webhook", 15.0, "µs", WEBHOOKS);
        SocketTransactions   = ("Postgres, transactions of an idle socket, each second", 0.0005, "", SWEEP);
        NodeTransactions     = ("Postgres, transactions of an idle node, each second", 5.5, "", SWEEP);
        SocketMemory         = ("node, memory of a socket", 8.2, "KiB", IDLE);
        NodeMemory           = ("node, memory without sockets, with full buffers", 512.0, "MiB", BUDGET);
        SocketRedisMemory    = ("Redis, memory of a socket's slot, entry and limits", 1.0, "KiB", PAPER);
        MessageDisk          = ("disk, a message without its payload, with indexes", 253.0, "B", SIZE);
        EntryDisk            = ("disk, an entry of an inbox, with indexes", 181.0, "B", SIZE);
        MessageWal           = ("log, a message to two inboxes without its payload", 1940.0, "B", STATEMENTS);
        DeliveryWal          = ("log, a further inbox of a message", 390.0, "B", STATEMENTS);
    }
}

/// The costs of a part: of a batch, a message, a delivery, a connect, a socket and a webhook.
pub(super) const OF_NODES: [Cost; 6] = [
    Cost::NodeBatch,
    Cost::NodeMessage,
    Cost::NodeDelivery,
    Cost::NodeConnect,
    Cost::NodeSocket,
    Cost::NodeWebhook,
];
pub(super) const OF_POSTGRES: [Cost; 6] = [
    Cost::PostgresBatch,
    Cost::PostgresMessage,
    Cost::PostgresDelivery,
    Cost::PostgresConnect,
    Cost::PostgresSocket,
    Cost::PostgresWebhook,
];
pub(super) const OF_REDIS: [Cost; 6] = [
    Cost::RedisBatch,
    Cost::RedisMessage,
    Cost::RedisDelivery,
    Cost::RedisConnect,
    Cost::RedisSocket,
    Cost::RedisWebhook,
];

impl Cost {
    /// The value in seconds.
    pub fn seconds(self) -> f64 {
        let (what, value, unit, _) = self.row();
        match unit {
            "ms" => value / 1e3,
            "µs" => value / 1e6,
            _ => unreachable!("{what} is no time"),
        }
    }

    /// The value in bytes.
    pub fn bytes(self) -> f64 {
        let (what, value, unit, _) = self.row();
        match unit {
            "B" => value,
            "KiB" => value * 1024.0,
            "MiB" => value * 1_048_576.0,
            _ => unreachable!("{what} is no size"),
        }
    }
}

/// The costs as a Markdown table.
pub fn as_markdown() -> String {
    let mut table = String::from("| cost | value | source |\n|---|---|---|\n");
    for cost in Cost::ALL {
        let (what, value, unit, source) = cost.row();
        let value = format!("{value} {unit}");
        table.push_str(&format!("| {what} | {} | {source} |\n", value.trim()));
    }
    table
}
