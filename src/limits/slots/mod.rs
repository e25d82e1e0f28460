//! Connection slots: a hard bound on a principal's connections over all nodes.
//!
//! Redis leases a slot on its own clock. A node's heartbeat, a call each second, keeps all leases
//! of the node alive. A node without a heartbeat for six seconds has lost its slots. Each
//! principal's connections are in a hash of their own, so that a cluster can spread them.
//!
//! After Redis forgets slots (a flush, a fail-over), the nodes assert them again after their next
//! two heartbeats. If there are too many then, the newest are closed. While Redis is away a node
//! admits the connections that its own count allows, and asserts them afterwards. Asserting many
//! slots takes a while, so a task does it beside the heartbeat.
//!
//! Why: ADR 13.

mod lease;
mod shown;
mod upkeep;

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

pub use blindpipe_protocol::agents::ConnectionKind;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;

use self::lease::{Decision, HeldSlots, Hold};
pub use self::{
    lease::{Lease, WebhookSlot},
    shown::Connection,
};
use super::quotas::{MAX_AGENT_CONNECTIONS, MAX_USER_CONNECTIONS};
use crate::{
    clock::Clock,
    ids::{AgentId, ConnectionId, NodeId, Principal},
    metrics,
    planted::PlantedBug,
    random::Random,
    redis::{Away, LiveNodes, Redis, Script, keys},
};

/// A callback for principals with a socket less.
type OfflineObserver = Box<dyn Fn(&[Principal]) + Send + Sync>;
/// A callback after a heartbeat that reached Redis.
type HeartbeatObserver = Box<dyn Fn(&LiveNodes, bool) + Send + Sync>;

/// The slots of one node; clones share them.
#[derive(Clone)]
pub struct Slots(Arc<Inner>);

struct Inner {
    max_agent_connections: usize,
    /// Called with the principals of sockets whose slots were given back.
    on_offline: RwLock<Vec<OfflineObserver>>,
    /// Called after each heartbeat, with the live nodes and whether Redis may have forgotten.
    on_beat: OnceLock<HeartbeatObserver>,
    redis: Redis,
    clock: Clock,
    random: Random,
    node: NodeId,
    script: Script,
    held: Mutex<HeldSlots>,
    /// Notified when there are slots to give back.
    notify: Notify,
    /// Notified after a heartbeat, when there may be slots to assert.
    unconfirmed_notify: Notify,
    /// The live nodes at the last heartbeat, and its time by this node's clock.
    live_nodes: Mutex<Option<(LiveNodes, Instant)>>,
}

impl Slots {
    /// Starts without any slot, and with the interface's bound for agents.
    pub fn new(redis: Redis, clock: Clock, random: Random, node: NodeId) -> Self {
        Self::bounded(redis, clock, random, node, MAX_AGENT_CONNECTIONS)
    }

    /// Starts without any slot, and with the operator's bound for agents.
    pub fn bounded(
        redis: Redis,
        clock: Clock,
        random: Random,
        node: NodeId,
        max_agent_connections: usize,
    ) -> Self {
        Slots(Arc::new(Inner {
            max_agent_connections,
            on_offline: RwLock::default(),
            on_beat: OnceLock::new(),
            redis,
            clock,
            random,
            node,
            script: Script::new(include_str!("slots.lua")),
            held: Mutex::default(),
            notify: Notify::new(),
            unconfirmed_notify: Notify::new(),
            live_nodes: Mutex::default(),
        }))
    }

    fn held(&self) -> MutexGuard<'_, HeldSlots> {
        self.0.held.lock()
    }

    fn live_nodes(&self) -> Option<(LiveNodes, Instant)> {
        self.0.live_nodes.lock().clone()
    }

    /// Adds a callback for principals whose sockets have ended. They may have others.
    pub fn on_offline(&self, observe: impl Fn(&[Principal]) + Send + Sync + 'static) {
        self.0.on_offline.write().push(Box::new(observe));
    }

    /// Sets the callback after each heartbeat that reached Redis. Its second argument is true where
    /// Redis may have forgotten what this node wrote.
    pub fn on_beat(&self, observe: impl Fn(&LiveNodes, bool) + Send + Sync + 'static) {
        self.0.on_beat.set(Box::new(observe)).ok();
    }

    /// Takes a slot of `principal`, if there is a free one. `device` is a user's.
    pub async fn take(
        &self,
        principal: Principal,
        kind: ConnectionKind,
        device: &str,
    ) -> Option<Lease> {
        match self.ask_for(principal, kind, device).await {
            WebhookSlot::Taken(lease) => Some(lease),
            WebhookSlot::Full | WebhookSlot::Online => None,
        }
    }

    /// Takes a slot for a webhook call. While Redis is away, only this node's sockets count.
    pub async fn take_for_webhook(&self, agent: AgentId) -> WebhookSlot {
        self.ask_for(Principal::Agent(agent), ConnectionKind::Webhook, "")
            .await
    }

    async fn ask_for(
        &self,
        principal: Principal,
        kind: ConnectionKind,
        device: &str,
    ) -> WebhookSlot {
        let max_connections = match principal {
            Principal::Agent(_) => self.0.max_agent_connections,
            Principal::User(_) => MAX_USER_CONNECTIONS,
        };
        // The lease exists before Redis is asked, so its slot is given back whatever becomes of the
        // call.
        let lease = Lease {
            slots: self.clone(),
            principal,
            id: ConnectionId::generate(&self.0.random),
            kind,
            loss: Arc::default(),
        };
        let mut hold = Hold {
            id: lease.id,
            granted: 0,
            kind,
            device: device.into(),
            loss: lease.loss.clone(),
        };
        let answer = self
            .ask(
                "take",
                principal,
                max_connections,
                true,
                vec![hold.id.to_string(), hold.what()],
            )
            .await;
        let mut held = self.held();
        let decision = match answer.as_deref() {
            _ if PlantedBug::CapByNode.is_planted() => {
                match held.decide_without_redis(principal, kind, max_connections) {
                    Decision::Unconfirmed => Decision::Granted(self.now()),
                    other => other,
                }
            }
            Ok([granted, at]) => match granted.as_str() {
                "1" => Decision::Granted(at.parse().unwrap_or_default()),
                "2" => Decision::Online,
                _ => Decision::Full,
            },
            _ => held.decide_without_redis(principal, kind, max_connections),
        };
        hold.granted = match decision {
            Decision::Online => return WebhookSlot::Online,
            Decision::Full => {
                metrics::slot("refused");
                return WebhookSlot::Full;
            }
            Decision::Granted(at) => {
                metrics::slot("granted");
                at
            }
            Decision::Unconfirmed => {
                metrics::slot("unconfirmed");
                held.unconfirmed.insert(principal);
                self.now()
            }
        };
        held.add(principal, max_connections, hold);
        WebhookSlot::Taken(lease)
    }

    async fn ask(
        &self,
        what: &str,
        principal: Principal,
        max_connections: usize,
        knowing: bool,
        rest: Vec<String>,
    ) -> Result<Vec<String>, Away> {
        let live_nodes = self.live_nodes().filter(|_| knowing);
        let (at, nodes) = live_nodes.map_or((0, String::new()), |(live_nodes, _)| {
            (live_nodes.at, live_nodes.nodes)
        });
        let mut args = vec![
            what.to_owned(),
            self.0.node.to_string(),
            max_connections.to_string(),
            at.to_string(),
            format!(",{nodes},"),
        ];
        args.extend(rest);
        self.0
            .redis
            .eval(
                &self.0.script,
                &[self.0.redis.key(keys::slots(principal.id()))],
                args,
            )
            .await
    }

    /// Redis's time as far as this node knows, in ms.
    fn now(&self) -> i64 {
        self.live_nodes().map_or_else(
            || (self.0.clock.now() - self.0.clock.ahead()).timestamp_millis(),
            |(live_nodes, then)| {
                live_nodes.at + i64::try_from(then.elapsed().as_millis()).unwrap_or_default()
            },
        )
    }
}
