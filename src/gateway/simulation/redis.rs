//! A simulated Redis, as a node sees it: channels and the directory.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    chance::Chance,
    faults::{Fault, Faults},
};
use crate::{
    delivery::{Incoming, PubSub},
    ids::{NodeId, PrincipalId},
    redis::{Away, LiveNodes},
};

/// The longest wait of a call.
const TIMEOUT: Duration = Duration::from_millis(250);
const NODE_LEASE: Duration = Duration::from_secs(6);
/// A heartbeat that is older than this is late.
const LATE_AFTER: Duration = Duration::from_millis(3_500);

/// The server. Clones share it.
#[derive(Clone)]
pub struct SimulatedRedis {
    data: Arc<Mutex<Data>>,
    chance: Chance,
    faults: Faults,
    /// The number of times that it was away.
    losses: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct Data {
    /// By channel, the receivers.
    channels: HashMap<String, HashMap<NodeId, mpsc::UnboundedSender<Incoming>>>,
    /// The nodes that serve a principal.
    directory: HashMap<PrincipalId, HashSet<NodeId>>,
    /// The last heartbeat of each node.
    beats: HashMap<NodeId, Instant>,
    /// When the last message of a sender reaches a receiver: a link keeps its order.
    links: HashMap<(NodeId, String), Instant>,
}

impl SimulatedRedis {
    pub fn new(chance: Chance, faults: Faults) -> Self {
        SimulatedRedis {
            data: Arc::default(),
            chance,
            faults,
            losses: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Forgets everything but the subscriptions.
    pub fn flush(&self) {
        let mut data = self.data.lock();
        data.directory.clear();
        data.beats.clear();
    }

    /// Goes away, and comes back empty.
    pub fn go_away(&self, time: Duration) {
        self.faults.begin(Fault::RedisAway, time);
        *self.data.lock() = Data::default();
        self.losses.send_modify(|losses| *losses += 1);
    }

    /// Notes a heartbeat. Returns the nodes that live, and whether this one was forgotten.
    pub fn beat(&self, node: NodeId) -> Option<(LiveNodes, bool)> {
        if self.faults.is(Fault::RedisAway) {
            return None;
        }
        let now = Instant::now();
        let mut data = self.data.lock();
        data.beats.retain(|_, at| now - *at < NODE_LEASE);
        let known = data.beats.insert(node, now).is_some();
        let mut nodes: Vec<(String, bool)> = (data.beats.iter())
            .map(|(node, at)| (node.to_string(), now - *at > LATE_AFTER))
            .collect();
        nodes.sort();
        let late = nodes.iter().filter(|(_, late)| *late);
        let late = late.map(|(node, _)| node.clone()).collect();
        let names: Vec<String> = nodes.into_iter().map(|(node, _)| node).collect();
        let live = LiveNodes {
            known,
            at: 0,
            nodes: names.join(","),
            late,
        };
        Some((live, !known))
    }

    /// The view of a node.
    pub fn of(&self, node: NodeId) -> Transport {
        let (sender, receiver) = mpsc::unbounded_channel();
        Transport {
            redis: self.clone(),
            node,
            sender,
            receiver: Arc::new(Mutex::new(Some(receiver))),
        }
    }
}

/// A node's connection.
#[derive(Clone)]
pub struct Transport {
    redis: SimulatedRedis,
    node: NodeId,
    sender: mpsc::UnboundedSender<Incoming>,
    receiver: Arc<Mutex<Option<mpsc::UnboundedReceiver<Incoming>>>>,
}

impl Transport {
    /// A round trip to the server, which may be away.
    async fn call(&self) -> Result<(), Away> {
        self.redis.faults.runs(self.node).await;
        if self.redis.faults.is(Fault::RedisAway) {
            tokio::time::sleep(TIMEOUT).await;
            return Err(Away);
        }
        tokio::time::sleep(self.redis.chance.ms(0, 4)).await;
        self.redis.faults.runs(self.node).await;
        match self.redis.faults.is(Fault::RedisAway) {
            true => Err(Away),
            false => Ok(()),
        }
    }

    /// Sends a message to the receivers of its channel.
    fn send(&self, channel: &str, text: &str) {
        let SimulatedRedis { chance, faults, .. } = &self.redis;
        let receivers = self.redis.data.lock().channels.get(channel).cloned();
        for (to, receiver) in receivers.into_iter().flatten() {
            let (is_lossy, is_double) =
                (faults.is(Fault::DropHints), faults.is(Fault::DoubleHints));
            if is_lossy && chance.percent(70) {
                continue;
            }
            let most = if faults.is(Fault::DelayHints) {
                1_000
            } else {
                4
            };
            let times = if is_double && chance.percent(50) {
                2
            } else {
                1
            };
            for _ in 0..times {
                let mut due = Instant::now() + chance.ms(0, most);
                let link = (self.node, channel.to_owned());
                let mut data = self.redis.data.lock();
                let last = data.links.entry(link).or_insert(due);
                due = due.max(*last);
                *last = due;
                drop(data);
                let (receiver, faults) = (receiver.clone(), faults.clone());
                let (channel, text) = (channel.to_owned(), text.to_owned());
                #[expect(clippy::disallowed_methods, reason = "ends with the world")]
                tokio::spawn(async move {
                    tokio::time::sleep_until(due).await;
                    faults.runs(to).await;
                    receiver.send(Incoming::Message { channel, text }).ok();
                });
            }
        }
    }
}

impl PubSub for Transport {
    type Inbound = Option<mpsc::UnboundedReceiver<Incoming>>;

    async fn publish_to_nodes(&self, messages: Vec<(String, String)>) -> bool {
        if self.call().await.is_err() {
            return false;
        }
        for (channel, text) in messages {
            self.send(&channel, &text);
        }
        true
    }

    async fn publish_to_all(&self, channel: String, text: String) -> bool {
        self.publish_to_nodes(vec![(channel, text)]).await
    }

    async fn subscribe(&self, node: String, all: String) -> bool {
        if self.call().await.is_err() {
            return false;
        }
        let mut data = self.redis.data.lock();
        for channel in [node, all] {
            let receivers = data.channels.entry(channel).or_default();
            receivers.insert(self.node, self.sender.clone());
        }
        true
    }

    fn inbound(&self) -> Self::Inbound {
        self.receiver.lock().take()
    }

    async fn next(inbound: &mut Self::Inbound) -> Option<Incoming> {
        inbound.as_mut()?.recv().await
    }

    async fn join(&self, principals: &[PrincipalId]) -> Result<Vec<PrincipalId>, Away> {
        self.call().await?;
        let mut data = self.redis.data.lock();
        let mut missing = principals.to_vec();
        missing.retain(|one| data.directory.entry(*one).or_default().insert(self.node));
        Ok(missing)
    }

    async fn leave(&self, principals: &[PrincipalId]) -> Result<(), Away> {
        self.call().await?;
        let mut data = self.redis.data.lock();
        for principal in principals {
            if let Some(nodes) = data.directory.get_mut(principal) {
                nodes.remove(&self.node);
            }
        }
        Ok(())
    }

    async fn find(
        &self,
        principals: &[PrincipalId],
    ) -> Result<HashMap<PrincipalId, Vec<NodeId>>, Away> {
        self.call().await?;
        let data = self.redis.data.lock();
        let found = principals.iter().filter_map(|one| {
            let others = data.directory.get(one)?.iter().copied();
            Some((*one, others.filter(|node| *node != self.node).collect()))
        });
        Ok(found.collect())
    }

    async fn live_nodes(&self) -> Result<Vec<NodeId>, Away> {
        self.call().await?;
        let now = Instant::now();
        let data = self.redis.data.lock();
        let live = data.beats.iter().filter(|(_, at)| now - **at < NODE_LEASE);
        Ok(live.map(|(node, _)| *node).collect())
    }

    async fn reconnect(&self) {}

    async fn reconnected(&self) {
        let mut losses = self.redis.losses.subscribe();
        losses.changed().await.ok();
        // The connection is remade when the server is back.
        while self.call().await.is_err() {}
    }
}
