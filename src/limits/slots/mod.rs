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

mod shown;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

pub use blindpipe_protocol::agents::ConnectionKind;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

pub use self::shown::Connection;
use super::quotas::{MAX_AGENT_CONNECTIONS, MAX_USER_CONNECTIONS, NODE_BEAT_INTERVAL, NODE_LEASE};
use crate::{
    clock::Clock,
    ids::{AgentId, ConnectionId, NodeId, Principal},
    metrics,
    random::Random,
    redis::{Away, LiveNodes, Redis, Script, keys},
    supervisor::supervise,
};

/// Slots that are asserted or freed at once. Their calls share the connection's round trips.
const MAX_BATCH_LEASES: usize = 256;
/// Heartbeats in which every slot is asserted at least once, in case Redis lost it without a trace.
const BEATS_PER_ROUND: u64 = 60;

/// The slots of one node; clones share them.
#[derive(Clone)]
pub struct Slots(Arc<Inner>);

struct Inner {
    max_agent_connections: usize,
    /// Called with the principals of sockets whose slots were given back.
    on_offline: OnceLock<Box<dyn Fn(Vec<Uuid>) + Send + Sync>>,
    redis: Redis,
    clock: Clock,
    random: Random,
    node: NodeId,
    script: Script,
    held: Mutex<Held>,
    /// Notified when there are slots to give back.
    notify: Notify,
    /// Notified after a heartbeat, when there may be slots to assert.
    doubted: Notify,
    /// The live nodes at the last heartbeat, and its time by this node's clock.
    living: Mutex<Option<(LiveNodes, Instant)>>,
}

/// The slots that this node holds.
#[derive(Default)]
struct Held {
    rows: HashMap<Uuid, Row>,
    /// Principals to assert after the next heartbeat: due, admitted without Redis, or with a call
    /// whose outcome is unknown.
    doubtful: HashSet<Uuid>,
    /// Whether some of them are being asserted now.
    asserting: bool,
    /// Connections that have ended and that Redis still counts.
    gone: Vec<Gone>,
}

/// A connection that has ended.
#[derive(Clone, Copy)]
struct Gone {
    principal: Uuid,
    id: ConnectionId,
    kind: ConnectionKind,
}

/// The answer to a webhook call that asks for a slot.
pub enum WebhookSlot {
    /// The call may be made while the lease lives.
    Taken(Lease),
    /// All slots of the agent are in use.
    Full,
    /// A socket of the agent is open somewhere, so no call is made.
    Online,
}

struct Row {
    max_connections: usize,
    holds: Vec<Hold>,
}

#[derive(Clone)]
struct Hold {
    id: ConnectionId,
    /// The time of the lease, in ms of Redis's clock.
    granted: i64,
    kind: ConnectionKind,
    device: Arc<str>,
    loss: Arc<LeaseLost>,
}

/// Notifies the connection that its slot is lost.
#[derive(Default)]
struct LeaseLost {
    lost: AtomicBool,
    on_lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl LeaseLost {
    fn happen(&self) {
        self.lost.store(true, Ordering::SeqCst);
        if let Some(on_lost) = self.on_lost.get() {
            on_lost();
        }
    }
}

/// A slot; given back on drop.
pub struct Lease {
    slots: Slots,
    principal: Uuid,
    /// The connection that holds the slot.
    pub id: ConnectionId,
    kind: ConnectionKind,
    loss: Arc<LeaseLost>,
}

impl Lease {
    /// Sets the callback for a slot that is lost before it is given back.
    pub fn on_lost(&self, on_lost: impl Fn() + Send + Sync + 'static) {
        let first = self.loss.on_lost.set(Box::new(on_lost)).is_ok();
        if first && self.loss.lost.load(Ordering::SeqCst) {
            self.loss.happen();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut held = self.slots.held();
        held.forget(self.principal, self.id);
        held.gone.push(Gone {
            principal: self.principal,
            id: self.id,
            kind: self.kind,
        });
        drop(held);
        self.slots.0.notify.notify_one();
    }
}

impl Held {
    fn add(&mut self, principal: Uuid, max_connections: usize, hold: Hold) {
        self.rows
            .entry(principal)
            .or_insert(Row {
                max_connections,
                holds: Vec::new(),
            })
            .holds
            .push(hold);
    }

    fn forget(&mut self, principal: Uuid, id: ConnectionId) {
        let Some(row) = self.rows.get_mut(&principal) else {
            return;
        };
        row.holds.retain(|hold| hold.id != id);
        if row.holds.is_empty() {
            self.rows.remove(&principal);
        }
    }
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
            on_offline: OnceLock::new(),
            redis,
            clock,
            random,
            node,
            script: Script::new(include_str!("slots.lua")),
            held: Mutex::default(),
            notify: Notify::new(),
            doubted: Notify::new(),
            living: Mutex::default(),
        }))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock()
    }

    fn living(&self) -> Option<(LiveNodes, Instant)> {
        self.0.living.lock().clone()
    }

    /// Sets the callback for principals whose sockets have ended. They may have others.
    pub fn on_offline(&self, tell: impl Fn(Vec<Uuid>) + Send + Sync + 'static) {
        self.0.on_offline.set(Box::new(tell)).ok();
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
        let principal = principal.id();
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
        match answer.as_deref() {
            Ok([granted, at]) => {
                if granted == "2" {
                    return WebhookSlot::Online;
                }
                if granted != "1" {
                    metrics::slot("refused");
                    return WebhookSlot::Full;
                }
                metrics::slot("granted");
                hold.granted = at.parse().unwrap_or_default();
            }
            // Redis is away, so this node decides alone. It keeps its connections, and admits none
            // beyond the bound.
            _ => {
                let holds = held.rows.get(&principal).map_or(&[][..], |row| &row.holds);
                let has_socket = holds
                    .iter()
                    .any(|hold| hold.kind == ConnectionKind::Websocket);
                if kind == ConnectionKind::Webhook && has_socket {
                    return WebhookSlot::Online;
                }
                if holds.len() >= max_connections {
                    metrics::slot("refused");
                    return WebhookSlot::Full;
                }
                metrics::slot("unconfirmed");
                held.doubtful.insert(principal);
                hold.granted = self.now();
            }
        }
        held.add(principal, max_connections, hold);
        WebhookSlot::Taken(lease)
    }

    async fn ask(
        &self,
        what: &str,
        principal: Uuid,
        max_connections: usize,
        knowing: bool,
        rest: Vec<String>,
    ) -> Result<Vec<String>, Away> {
        let living = self.living().filter(|_| knowing);
        let (at, nodes) =
            living.map_or((0, String::new()), |(living, _)| (living.at, living.nodes));
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
                &[self.0.redis.key(keys::slots(principal))],
                args,
            )
            .await
    }

    /// Redis's time as far as this node knows, in ms.
    fn now(&self) -> i64 {
        self.living().map_or_else(
            || (self.0.clock.now() - self.0.clock.ahead()).timestamp_millis(),
            |(living, then)| {
                living.at + i64::try_from(then.elapsed().as_millis()).unwrap_or_default()
            },
        )
    }

    /// Spawns the tasks that keep the slots; they end with `stop`. Each heartbeat calls `pulse`.
    /// Its argument is true after a freeze of the process that cost it its slots.
    pub fn spawn(
        &self,
        tasks: &TaskTracker,
        stop: &CancellationToken,
        pulse: impl Fn(bool) + Send + Sync + 'static,
    ) {
        let (slots, until, pulse) = (self.clone(), stop.clone(), Arc::new(pulse));
        let beat = supervise("slots.beat", move || slots.clone().beat(pulse.clone()));
        tasks.spawn(async move { until.run_until_cancelled(beat).await });
        let (slots, until) = (self.clone(), stop.clone());
        let assert = supervise("slots.assert", move || slots.clone().assert());
        tasks.spawn(async move { until.run_until_cancelled(assert).await });
        let (slots, until) = (self.clone(), stop.clone());
        let give_back = supervise("slots.give_back", move || slots.clone().give_back());
        tasks.spawn(async move { until.run_until_cancelled(give_back).await });
    }

    async fn beat(self, pulse: Arc<impl Fn(bool)>) {
        let mut links = self.0.redis.links();
        let (mut last, mut beats, mut passes) = (Instant::now(), 0, 0);
        loop {
            let frozen = last.elapsed() > NODE_LEASE;
            pulse(frozen);
            if frozen {
                // Other connections may have these slots by now, so nothing is asserted. A
                // connection without a callback yet ends when it sets one.
                let rows = std::mem::take(&mut self.held().rows);
                rows.values()
                    .flat_map(|row| &row.holds)
                    .for_each(|hold| hold.loss.happen());
            }
            last = Instant::now();
            if let Ok(living) = self.0.redis.beat(self.0.node, NODE_LEASE).await {
                // Both are always read, so that an old reconnection never counts as a new one.
                let relinked = Redis::relinked(&mut links);
                if relinked || !living.known {
                    // All slots are asserted twice. By the second time, every other node has
                    // asserted its own at least once.
                    passes = 2;
                }
                *self.0.living.lock() = Some((living, Instant::now()));
                // The second pass begins when the first is over.
                let all = passes == 2 || passes == 1 && self.is_idle();
                passes -= i32::from(all);
                self.doubt(|principal| {
                    all || u64::from(principal.as_bytes()[15]) % BEATS_PER_ROUND
                        == beats % BEATS_PER_ROUND
                });
                self.0.doubted.notify_one();
                self.0.notify.notify_one();
            }
            beats += 1;
            tokio::time::sleep(NODE_BEAT_INTERVAL.saturating_sub(last.elapsed())).await;
        }
    }

    /// Whether no slot waits to be asserted.
    fn is_idle(&self) -> bool {
        let held = self.held();
        held.doubtful.is_empty() && !held.asserting
    }

    fn doubt(&self, due: impl Fn(&Uuid) -> bool) {
        let held = &mut *self.held();
        held.doubtful
            .extend(held.rows.keys().filter(|principal| due(principal)));
    }

    /// Asserts the doubtful slots, batch by batch. If Redis goes away, the next successful
    /// heartbeat resumes.
    async fn assert(self) {
        loop {
            self.0.doubted.notified().await;
            while let Some(chunk) = self.next_chunk() {
                let asserted = chunk.iter().map(|principal| self.assert_one(*principal));
                let outcomes = futures_util::future::join_all(asserted).await;
                let mut held = self.held();
                held.asserting = false;
                if outcomes.iter().any(Result::is_err) {
                    held.doubtful.extend(chunk);
                    break;
                }
            }
        }
    }

    fn next_chunk(&self) -> Option<Vec<Uuid>> {
        // A node that has been silent or frozen this long may have lost its slots. The heartbeat
        // must find that out first.
        self.living()
            .filter(|(_, then)| then.elapsed() < NODE_LEASE)?;
        let mut held = self.held();
        let chunk: Vec<Uuid> = held
            .doubtful
            .extract_if(|_| true)
            .take(MAX_BATCH_LEASES)
            .collect();
        held.asserting = !chunk.is_empty();
        held.asserting.then_some(chunk)
    }

    async fn assert_one(&self, principal: Uuid) -> Result<(), Away> {
        let (max_connections, holds) = match self.held().rows.get(&principal) {
            Some(row) => (row.max_connections, row.holds.clone()),
            // All were given back meanwhile, and another task frees them.
            None => return Ok(()),
        };
        let ours: Vec<String> = holds
            .iter()
            .flat_map(|hold| [hold.id.to_string(), hold.granted.to_string(), hold.what()])
            .collect();
        // The list of live nodes is long, so it is sent only if there are too many connections.
        let answer = self
            .ask("keep", principal, max_connections, false, ours.clone())
            .await?;
        let there: usize = answer
            .first()
            .and_then(|n| n.parse().ok())
            .unwrap_or_default();
        if there > max_connections {
            let answer = self
                .ask("keep", principal, max_connections, true, ours)
                .await?;
            for id in answer.iter().skip(1) {
                if let Some(hold) = holds.iter().find(|hold| hold.id.to_string() == *id) {
                    metrics::slot("lost");
                    self.held().forget(principal, hold.id);
                    hold.loss.happen();
                }
            }
        }
        // Some may have ended between the read and the call, which then asserted them in vain.
        let mut held = self.held();
        let still = held.rows.get(&principal).map_or(&[][..], |row| &row.holds);
        let ended: Vec<_> = holds
            .iter()
            .filter(|hold| still.iter().all(|other| other.id != hold.id))
            .map(|hold| Gone {
                principal,
                id: hold.id,
                kind: hold.kind,
            })
            .collect();
        if !ended.is_empty() {
            held.gone.extend(ended);
            drop(held);
            self.0.notify.notify_one();
        }
        Ok(())
    }

    /// Gives back the slots of ended connections at once. Failed calls are repeated at the next
    /// heartbeat.
    async fn give_back(self) {
        loop {
            self.0.notify.notified().await;
            self.flush().await;
        }
    }

    /// Gives back the slots of all connections that have ended so far.
    pub async fn flush(&self) {
        let gone = std::mem::take(&mut self.held().gone);
        for chunk in gone.chunks(MAX_BATCH_LEASES) {
            let calls = chunk
                .iter()
                .map(async |gone| self.give_back_one(gone.principal, gone.id).await);
            let outcomes = futures_util::future::join_all(calls).await;
            let (back, failed): (Vec<_>, Vec<_>) = chunk
                .iter()
                .zip(outcomes)
                .partition(|(_, outcome)| outcome.is_ok());
            self.held().gone.extend(failed.iter().map(|(one, _)| **one));
            let sockets = back
                .iter()
                .filter(|(one, _)| one.kind == ConnectionKind::Websocket);
            let offline: Vec<Uuid> = sockets.map(|(one, _)| one.principal).collect();
            if let Some(tell) = self.0.on_offline.get().filter(|_| !offline.is_empty()) {
                tell(offline);
            }
        }
    }

    async fn give_back_one(&self, principal: Uuid, id: ConnectionId) -> Result<(), Away> {
        use fred::interfaces::HashesInterface;
        let key = self.0.redis.key(keys::slots(principal));
        self.0
            .redis
            .run(async |client| client.hdel::<(), _, _>(key, id.to_string()).await)
            .await
    }
}

impl Hold {
    fn what(&self) -> String {
        format!("{} {}", self.kind, self.device)
    }
}
