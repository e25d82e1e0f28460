//! Redis, for what may vanish: hints and counters.
//!
//! No call waits longer than `REDIS_TIMEOUT_MS`; after five failures in a row the breaker opens and one call a second
//! tries again. Callers take an `Err` as "away" and have an answer of their own for it.

pub(crate) mod keys;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::{Client, SubscriberClient},
    interfaces::{ClientLike, FredResult, LuaInterface},
    types::{
        Builder, FromValue, Key,
        config::{Config, Options, ReconnectPolicy, UnresponsiveConfig},
    },
};
use secrecy::{ExposeSecret, SecretString};

use crate::{breaker::Breaker, ids::NodeId, metrics};

/// Longest wait for the link when a node starts.
const FIRST_PING_TIMEOUT: Duration = Duration::from_secs(1);

/// A Lua script, by its hash.
pub struct Script {
    script: fred::types::scripts::Script,
}

impl Script {
    /// From its text.
    pub fn new(lua: &'static str) -> Self {
        Script {
            script: fred::types::scripts::Script::from_lua(lua),
        }
    }
}

/// Why there is no answer: away, late, or refused by the breaker. All mean the same to callers.
#[derive(Debug)]
pub struct Away;

/// The nodes that live.
#[derive(Clone, Default)]
pub struct LiveNodes {
    /// Whether the node that asked counted as living until then; not if its last beat was too long ago or forgotten.
    pub known: bool,
    /// When, in ms of Redis's clock.
    pub at: i64,
    /// Their ids, separated by commas.
    pub nodes: String,
}

/// Hears of new links to Redis.
pub struct Links(tokio::sync::broadcast::Receiver<fred::types::config::Server>);

/// The command connection of one node; clones share it.
#[derive(Clone)]
pub struct Redis {
    client: Client,
    timeout: Duration,
    prefix: Arc<str>,
    breaker: Arc<Breaker>,
    nodes: Arc<AtomicU32>,
    beat: Arc<Script>,
}

impl Redis {
    /// Starts connecting; returns at once ([`greet`](Self::greet) waits). A Redis that is away at boot is treated as one that is
    /// away later. No call waits longer than `timeout`.
    pub fn start(
        url: &SecretString,
        prefix: &str,
        timeout: Duration,
    ) -> FredResult<(Self, SubscriberClient)> {
        let client = builder(url, timeout)?.build()?;
        let mut builder = builder(url, timeout)?;
        // The buffer of received messages holds 32 by default, which a burst of hints overruns. What overruns this one is
        // counted and swept. It is memory that is taken at once, several times over: not more than a burst needs.
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
            nodes: Arc::new(AtomicU32::new(1)),
            beat: Arc::new(Script::new(include_str!("node_beat.lua"))),
        };
        Ok((redis, subscriber))
    }

    /// Waits for the link, so that a node does not begin with its own share of the limits; but not long.
    pub async fn greet(&self) {
        tokio::time::timeout(FIRST_PING_TIMEOUT, self.client.wait_for_connect())
            .await
            .ok();
    }

    /// Whether keys are spread over several masters, by their hash slots.
    pub fn is_clustered(&self) -> bool {
        self.client.is_clustered()
    }

    /// `name` with the cluster's prefix.
    pub fn key(&self, name: impl AsRef<str>) -> String {
        [&self.prefix, ":", name.as_ref()].concat()
    }

    /// How many nodes live, by the last beat that got through; at least 1.
    pub fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed).max(1)
    }

    /// Whether it has not answered lately, so that asking again soon is in vain.
    pub fn is_given_up(&self) -> bool {
        self.breaker.is_open()
    }

    /// Says that `node` lives; returns who does.
    pub async fn beat(&self, node: NodeId, lives: Duration) -> Result<LiveNodes, Away> {
        let life = i64::try_from(lives.as_millis()).unwrap_or(i64::MAX);
        let args = vec![node.to_string(), life.to_string()];
        let answer: Vec<String> = self
            .eval(&self.beat, &[self.key(keys::nodes())], args)
            .await?;
        let [known, at, nodes @ ..] = answer.as_slice() else {
            return Err(Away);
        };
        self.nodes.store(
            u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            Ordering::Relaxed,
        );
        Ok(LiveNodes {
            known: known == "1",
            at: at.parse().unwrap_or_default(),
            nodes: nodes.join(","),
        })
    }

    /// Whether the link was made anew since the last time this was asked of `links`.
    pub fn relinked(links: &mut Links) -> bool {
        use tokio::sync::broadcast::error::TryRecvError;
        let mut any = false;
        loop {
            match links.0.try_recv() {
                Ok(_) | Err(TryRecvError::Lagged(_)) => any = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return any,
            }
        }
    }

    /// For [`relinked`](Self::relinked).
    pub fn links(&self) -> Links {
        use fred::interfaces::EventInterface;
        Links(self.client.reconnect_rx())
    }

    /// Takes this node off the list of the living.
    pub async fn leave(&self, node: NodeId) {
        use fred::interfaces::SortedSetsInterface;
        let key = self.key(keys::nodes());
        self.run(async |client| client.zrem::<(), _, _>(key, node.to_string()).await)
            .await
            .ok();
    }

    /// Runs a script by its hash, loading it first where Redis has forgotten it.
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
        let keys = || {
            keys.iter()
                .map(|key| Key::from(key.as_ref()))
                .collect::<Vec<_>>()
        };
        self.run(async |client| {
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

    /// Runs one or more commands within the deadline, through the breaker.
    pub async fn run<T>(
        &self,
        work: impl AsyncFnOnce(&fred::clients::WithOptions<Client>) -> FredResult<T>,
    ) -> Result<T, Away> {
        if !self.breaker.allow() {
            metrics::redis_call("refused");
            return Err(Away);
        }
        let options = Options {
            fail_fast: true,
            timeout: Some(self.timeout),
            ..Options::default()
        };
        let client = self.client.with_options(&options);
        // The client's futures take 7 KB, which every request and every socket would carry along.
        match tokio::time::timeout(self.timeout, Box::pin(work(&client))).await {
            Ok(Ok(value)) => {
                self.breaker.record_success();
                metrics::redis_call("ok");
                Ok(value)
            }
            Ok(Err(error)) => {
                tracing::warn!(error = error.details(), kind = ?error.kind(), "a Redis call failed");
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

/// What fred leaves unbounded is bounded here: waiting, the queue of a link that is down, a silent peer.
fn builder(url: &SecretString, timeout: Duration) -> FredResult<Builder> {
    // Making a link takes several answers.
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
