//! Redis, for contents that may vanish: hints and counters.
//!
//! No call waits longer than `REDIS_TIMEOUT_MS`. Five failures in a row open the breaker, and then
//! a call each second tries again; heartbeats go out all the same. Callers treat an `Err` as "away"
//! and have a fallback of their own.
//!
//! Why: ADR 1.

mod inspection;
pub(crate) mod keys;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fred::{
    clients::{Client, SubscriberClient},
    interfaces::{ClientLike, FredResult, LuaInterface},
    types::{
        Builder, FromValue, Key,
        config::{Config, Options, ReconnectPolicy, UnresponsiveConfig},
    },
};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};

pub use self::inspection::Inspection;
use crate::{breaker::Breaker, ids::NodeId, metrics};

/// Longest wait for the connection when a node starts.
const FIRST_PING_TIMEOUT: Duration = Duration::from_secs(1);

/// A Lua script, by its hash.
pub struct Script {
    script: fred::types::scripts::Script,
}

impl Script {
    /// A script with the text `lua`.
    pub fn new(lua: &'static str) -> Self {
        Script {
            script: fred::types::scripts::Script::from_lua(lua),
        }
    }
}

/// The error of a call without an answer: away, late, or refused by the breaker. All mean the same
/// to callers.
#[derive(Debug)]
pub struct Away;

/// The nodes that live.
#[derive(Clone, Default)]
pub struct LiveNodes {
    /// Whether the node that asked was on the list until now. False if its last heartbeat is too
    /// old or forgotten.
    pub known: bool,
    /// The time of the answer, in ms of Redis's clock.
    pub at: i64,
    /// The ids of the live nodes, separated by commas.
    pub nodes: String,
    /// The ids of those among them whose heartbeat is late.
    pub late: Vec<String>,
}

/// The number of live nodes.
#[derive(Default)]
struct NodeCount {
    count: u32,
    /// When the count may fall.
    holds_until: Option<Instant>,
}

impl NodeCount {
    /// Notes the number of nodes on the list. It counts at once if it is larger. Otherwise it
    /// counts a lease later: a Redis that restarted has an empty list, on which the first node
    /// stands alone, and would take the local shares of all.
    fn note(&mut self, listed: u32, known: bool, now: Instant, lives: Duration) {
        let may_fall = known && self.holds_until.is_none_or(|until| until <= now);
        if listed >= self.count || may_fall {
            self.count = listed;
            self.holds_until = Some(now + lives);
        } else if !known {
            self.holds_until = Some(now + lives);
        }
    }
}

/// A receiver of reconnections to Redis.
pub struct ReconnectWatch(tokio::sync::broadcast::Receiver<fred::types::config::Server>);

/// The command connection of one node; clones share it.
#[derive(Clone)]
pub struct Redis {
    client: Client,
    timeout: Duration,
    prefix: Arc<str>,
    breaker: Arc<Breaker>,
    nodes: Arc<Mutex<NodeCount>>,
    heartbeat: Arc<Script>,
}

impl Redis {
    /// Starts to connect and returns at once ([`ping`](Self::ping) waits). Redis may be away at
    /// boot as at any later time. No call waits longer than `timeout`.
    pub fn start(
        url: &SecretString,
        prefix: &str,
        timeout: Duration,
    ) -> FredResult<(Self, SubscriberClient)> {
        let client = builder(url, timeout)?.build()?;
        let mut builder = builder(url, timeout)?;
        // The buffer of received messages holds 32 by default, and a burst of hints overruns it.
        // Lost messages are counted, and a sweep follows. The buffer is allocated at once and
        // several times over, so it is no larger than a burst needs.
        builder
            .with_performance_config(|performance| performance.broadcast_channel_capacity = 8_192);
        let subscriber = builder.build_subscriber_client()?;
        client.connect();
        subscriber.connect();
        let redis = Redis {
            client,
            timeout,
            prefix: prefix.into(),
            breaker: Arc::default(),
            nodes: Arc::default(),
            heartbeat: Arc::new(Script::new(include_str!("node_heartbeat.lua"))),
        };
        Ok((redis, subscriber))
    }

    /// A Redis that is never there, for a simulation that asks for names alone.
    #[cfg(test)]
    pub fn unconnected(prefix: &str) -> Self {
        let timeout = Duration::from_millis(250);
        let client = builder(&"redis://localhost".into(), timeout).and_then(|one| one.build());
        Redis {
            client: client.unwrap_or_else(|error| unreachable!("a plain URL: {error}")),
            timeout,
            prefix: prefix.into(),
            breaker: Arc::default(),
            nodes: Arc::default(),
            heartbeat: Arc::new(Script::new(include_str!("node_heartbeat.lua"))),
        }
    }

    /// Waits briefly for the connection, so that a node does not begin with its local share of the
    /// limits.
    pub async fn ping(&self) {
        tokio::time::timeout(FIRST_PING_TIMEOUT, self.client.wait_for_connect())
            .await
            .ok();
    }

    /// Whether several masters share the keys, by hash slot.
    pub fn is_clustered(&self) -> bool {
        self.client.is_clustered()
    }

    /// `name` with the cluster's prefix.
    pub fn key(&self, name: impl AsRef<str>) -> String {
        [&self.prefix, ":", name.as_ref()].concat()
    }

    /// The largest number of live nodes that a heartbeat saw within the last lease; at least 1.
    pub fn nodes(&self) -> u32 {
        self.nodes.lock().count.max(1)
    }

    /// Whether the breaker is open, so that an early retry is in vain.
    pub fn is_given_up(&self) -> bool {
        self.breaker.is_open()
    }

    /// Sends the heartbeat of `node` and returns the live nodes.
    pub async fn heartbeat(&self, node: NodeId, lives: Duration) -> Result<LiveNodes, Away> {
        let life = i64::try_from(lives.as_millis()).unwrap_or(i64::MAX);
        let args = vec![node.to_string(), life.to_string()];
        let answer: Vec<String> = self
            .eval_by(
                Permit::Always,
                &self.heartbeat,
                &[self.key(keys::nodes())],
                args,
            )
            .await?;
        let [known, at, late, nodes @ ..] = answer.as_slice() else {
            return Err(Away);
        };
        let known = known == "1";
        let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        self.nodes.lock().note(count, known, Instant::now(), lives);
        Ok(LiveNodes {
            known,
            at: at.parse().unwrap_or_default(),
            nodes: nodes.join(","),
            late: late
                .split(',')
                .filter(|node| !node.is_empty())
                .map(str::to_owned)
                .collect(),
        })
    }

    /// The nodes that live now.
    pub async fn live_nodes(&self) -> Result<Vec<NodeId>, Away> {
        use fred::interfaces::SortedSetsInterface;
        let key = self.key(keys::nodes());
        let listed: Vec<String> = self
            .run(async |client| client.zrange(key, 0, -1, None, false, None, false).await)
            .await?;
        Ok(listed.iter().filter_map(|node| node.parse().ok()).collect())
    }

    /// Whether the connection was remade since the last call with `reconnects`.
    pub fn has_reconnected(reconnects: &mut ReconnectWatch) -> bool {
        use tokio::sync::broadcast::error::TryRecvError;
        let mut any = false;
        loop {
            match reconnects.0.try_recv() {
                Ok(_) | Err(TryRecvError::Lagged(_)) => any = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return any,
            }
        }
    }

    /// A receiver for [`has_reconnected`](Self::has_reconnected).
    pub fn reconnects(&self) -> ReconnectWatch {
        use fred::interfaces::EventInterface;
        ReconnectWatch(self.client.reconnect_rx())
    }

    /// Removes this node from the list of live nodes.
    pub async fn leave(&self, node: NodeId) {
        use fred::interfaces::SortedSetsInterface;
        let key = self.key(keys::nodes());
        self.run(async |client| client.zrem::<(), _, _>(key, node.to_string()).await)
            .await
            .ok();
    }

    /// Runs a script by its hash, and loads it first where Redis has forgotten it.
    pub async fn eval<T, A>(
        &self,
        script: &Script,
        keys: &[impl AsRef<str>],
        args: Vec<A>,
    ) -> Result<T, Away>
    where
        T: FromValue + Send,
        A: TryInto<fred::types::Value> + Clone + Send,
        A::Error: Into<fred::error::Error> + Send,
    {
        self.eval_by(Permit::Breaker, script, keys, args).await
    }

    async fn eval_by<T, A>(
        &self,
        permit: Permit,
        script: &Script,
        keys: &[impl AsRef<str>],
        args: Vec<A>,
    ) -> Result<T, Away>
    where
        T: FromValue + Send,
        A: TryInto<fred::types::Value> + Clone + Send,
        A::Error: Into<fred::error::Error> + Send,
    {
        let keys = || {
            keys.iter()
                .map(|key| Key::from(key.as_ref()))
                .collect::<Vec<_>>()
        };
        self.run_by(permit, async |client| {
            let sha = script.script.sha1().clone();
            let first = client
                .evalsha::<T, _, _, _>(sha, keys(), args.clone())
                .await;
            match first {
                Err(error) if error.details().starts_with("NOSCRIPT") => {
                    let lua = script.script.lua().cloned().unwrap_or_default();
                    client.eval::<T, _, _, _>(lua, keys(), args).await
                }
                other => other,
            }
        })
        .await
    }

    /// Runs commands within the deadline, through the breaker.
    pub async fn run<T>(
        &self,
        work: impl AsyncFnOnce(&fred::clients::WithOptions<Client>) -> FredResult<T>,
    ) -> Result<T, Away> {
        self.run_by(Permit::Breaker, work).await
    }

    async fn run_by<T>(
        &self,
        permit: Permit,
        work: impl AsyncFnOnce(&fred::clients::WithOptions<Client>) -> FredResult<T>,
    ) -> Result<T, Away> {
        if permit == Permit::Breaker && !self.breaker.allow() {
            metrics::redis_call("refused");
            return Err(Away);
        }
        let options = Options {
            fail_fast: true,
            timeout: Some(self.timeout),
            ..Options::default()
        };
        let client = self.client.with_options(&options);
        // The client's futures take 7 KB, and every request and socket would carry them along.
        match tokio::time::timeout(self.timeout, Box::pin(work(&client))).await {
            Ok(Ok(value)) => {
                self.breaker.record_success();
                metrics::redis_call("ok");
                Ok(value)
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    operation = "redis.call",
                    cause = error.details(),
                    kind = ?error.kind(),
                    remedy = "the node goes on without Redis",
                    "a call failed"
                );
                self.missed("failed")
            }
            Err(_) => self.missed("late"),
        }
    }

    fn missed<T>(&self, how: &'static str) -> Result<T, Away> {
        self.breaker.record_failure();
        metrics::redis_call(how);
        Err(Away)
    }

    /// Closes the connection.
    pub async fn quit(&self) {
        tokio::time::timeout(self.timeout, self.client.quit())
            .await
            .ok();
    }
}

/// The permission that a call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Permit {
    /// The breaker's.
    Breaker,
    /// None. Nodes must find out at about the same time that Redis is back, because each asserts
    /// its slots so that the others see them. Another call must not take the breaker's turn.
    Always,
}

/// Bounds what fred leaves unbounded: waits, the queue of a broken connection, a silent peer.
fn builder(url: &SecretString, timeout: Duration) -> FredResult<Builder> {
    // Connecting takes several answers.
    let patience = (4 * timeout).max(Duration::from_secs(1));
    let mut builder = Builder::from_config(Config::from_url(url.expose_secret())?);
    builder
        .with_config(|config| config.fail_fast = false)
        .with_connection_config(|connection| {
            connection.connection_timeout = patience;
            connection.internal_command_timeout = patience;
            connection.max_command_attempts = 3;
            connection.max_command_buffer_len = 10_000;
            connection.unresponsive = UnresponsiveConfig {
                max_timeout: Some(2 * patience),
                interval: Duration::from_millis(500),
            };
        })
        .with_performance_config(|performance| performance.default_command_timeout = patience)
        .set_policy(ReconnectPolicy::new_exponential(0, 50, 1_000, 2));
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_was_forgotten_does_not_lower_the_count_for_a_lease() {
        let (start, lives) = (Instant::now(), Duration::from_secs(6));
        let mut nodes = NodeCount::default();
        let mut note = |listed, known, seconds| {
            nodes.note(listed, known, start + Duration::from_secs(seconds), lives);
            nodes.count
        };
        assert_eq!(note(1, false, 0), 1);
        assert_eq!(note(2, true, 1), 2);
        // Redis restarted, and this node is the first on its list.
        assert_eq!(note(1, false, 60), 2);
        assert_eq!(note(1, true, 65), 2);
        assert_eq!(note(1, true, 66), 1);
    }
}
