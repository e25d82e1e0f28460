//! The tasks that keep the connection to other nodes: the directory's entries, the channels, the
//! probe.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Backplane, Outgoing, State, directory::WEBHOOK_WORKERS, message_mac::MessageSigner,
    pubsub::PubSub,
};
use crate::{
    delivery::hub::{Hub, SubscriptionChange},
    ids::{NodeId, PrincipalId},
    metrics,
    redis::{Away, Redis, keys},
    supervisor,
};

/// Most messages of a pipeline.
pub(super) const MAX_BATCH_MESSAGES: usize = 512;
/// Most entries of the directory that are changed together.
const MAX_BATCH_ENTRIES: usize = 1_024;
/// Each entry is asserted once in this many seconds.
const ASSERTION_SLICES: u8 = 60;
/// Pause between two tries while Redis is away.
const RENEW_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Pause between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which the node takes its channel subscriptions for lost.
const MAX_SILENCE: Duration = Duration::from_secs(3);

/// A node's tasks over a transport.
pub struct PubSubWorker<P> {
    pub(super) node: NodeId,
    pub(super) transport: P,
    pub(super) redis: Redis,
    pub(super) hub: Hub,
    pub(super) backplane: Backplane,
    pub(super) signer: MessageSigner,
    pub(super) state: Arc<State>,
    started: Instant,
    /// The time of the last probe that came back, since the start.
    pub(super) last_probe_at: Mutex<Duration>,
    /// Nodes that were sent messages, each with the time of the last, until they are told its
    /// number.
    pub(super) last_sends: Mutex<HashMap<NodeId, Instant>>,
}

impl<P: PubSub> PubSubWorker<P> {
    /// Spawns the tasks; they end with `stop`.
    pub fn start(
        backplane: &Backplane,
        transport: P,
        outgoing: Outgoing,
        interest: mpsc::UnboundedReceiver<SubscriptionChange>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let worker = Arc::new(PubSubWorker {
            node: backplane.node,
            transport,
            redis: backplane.redis.clone(),
            hub: backplane.hub.clone(),
            backplane: backplane.clone(),
            signer: backplane.signer.clone(),
            state: backplane.state(),
            started: Instant::now(),
            last_probe_at: Mutex::default(),
            last_sends: Mutex::default(),
        });
        // The queues outlive a task that panics and starts again.
        let outgoing = Arc::new(tokio::sync::Mutex::new(outgoing));
        let interest = Arc::new(tokio::sync::Mutex::new(interest));
        let own = worker.clone();
        supervisor::spawn_until(tasks, stop, "backplane.publish", move || {
            let (worker, outgoing) = (own.clone(), outgoing.clone());
            async move { worker.publish(&mut *outgoing.lock().await).await }
        });
        let own = worker.clone();
        supervisor::spawn_until(tasks, stop, "backplane.serve", move || {
            let (worker, interest) = (own.clone(), interest.clone());
            async move { worker.serve(&mut *interest.lock().await).await }
        });
        let own = worker.clone();
        supervisor::spawn_until(tasks, stop, "backplane.receive", move || {
            own.clone().receive()
        });
        supervisor::spawn_until(tasks, stop, "backplane.link", move || {
            worker.clone().supervise_link()
        });
    }

    /// Keeps the directory's entries of this node equal to the principals that it serves.
    async fn serve(self: Arc<Self>, interest: &mut mpsc::UnboundedReceiver<SubscriptionChange>) {
        let mut held: HashSet<PrincipalId> = HashSet::new();
        let mut changes = Vec::new();
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut slice = 0;
        self.state.renew.notify_one();
        loop {
            tokio::select! {
                biased;
                () = self.state.renew.notified() => {
                    while !self.renew_all(&mut held).await {
                        tokio::time::sleep(RENEW_RETRY_INTERVAL).await;
                    }
                }
                n = interest.recv_many(&mut changes, MAX_BATCH_ENTRIES) => {
                    if n == 0 {
                        return;
                    }
                    let changed = changes.drain(..).map(|SubscriptionChange(principal)| principal);
                    self.follow(&mut held, changed).await;
                }
                _ = seconds.tick() => {
                    slice = (slice + 1) % ASSERTION_SLICES;
                    self.assert_slice(&held, slice).await;
                }
            }
        }
    }

    async fn follow(
        &self,
        held: &mut HashSet<PrincipalId>,
        changed: impl Iterator<Item = PrincipalId>,
    ) {
        let changed: HashSet<PrincipalId> = changed.collect();
        let (wanted, unwanted): (Vec<PrincipalId>, Vec<PrincipalId>) =
            changed.into_iter().partition(|one| self.hub.listens(*one));
        let new: Vec<PrincipalId> = wanted.into_iter().filter(|one| held.insert(*one)).collect();
        let old: Vec<PrincipalId> = unwanted
            .into_iter()
            .filter(|one| held.remove(one))
            .collect();
        if !new.is_empty() {
            if self.transport.join(&new).await.is_err() {
                // It is unknown which of them are there, so all are made anew.
                self.state.renew.notify_one();
            }
            self.state.new_principals.extend(new);
        }
        if !old.is_empty() {
            // An entry too many only costs messages that no subscription here takes.
            self.transport.leave(&old).await.ok();
        }
    }

    /// Asserts a part of the entries, in case Redis lost some without a trace.
    async fn assert_slice(&self, held: &HashSet<PrincipalId>, slice: u8) {
        let is_due = |one: &&PrincipalId| one.as_bytes()[15] % ASSERTION_SLICES == slice;
        let due: Vec<PrincipalId> = held.iter().filter(is_due).copied().collect();
        match self.transport.join(&due).await {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => {
                metrics::hints("unlisted", missing.len() as u64);
                self.state.new_principals.extend(missing);
            }
            Err(Away) => self.state.renew.notify_one(),
        }
    }

    /// The principals whose entries name this node.
    fn served(&self) -> HashSet<PrincipalId> {
        let workers = self.state.delivers_webhooks().then_some(WEBHOOK_WORKERS);
        self.hub.principals().into_iter().chain(workers).collect()
    }

    async fn renew_all(&self, held: &mut HashSet<PrincipalId>) -> bool {
        let wanted = self.served();
        let unserved: Vec<PrincipalId> = held.difference(&wanted).copied().collect();
        *held = wanted;
        // The channel comes before the entries that lead others to it.
        let own = self.redis.key(keys::node_channel(self.node));
        let all = self.redis.key(keys::control_channel());
        if !self.transport.subscribe(own, all).await {
            return false;
        }
        if !unserved.is_empty() {
            self.transport.leave(&unserved).await.ok();
        }
        let principals: Vec<PrincipalId> = held.iter().copied().collect();
        for piece in principals.chunks(MAX_BATCH_ENTRIES) {
            if self.transport.join(piece).await.is_err() {
                return false;
            }
        }
        self.state.request_log_read();
        true
    }

    /// Finds losses on the links to other nodes. No loop waits behind the calls of another.
    async fn supervise_link(self: Arc<Self>) {
        tokio::join!(self.send_last_sequences(), self.watch_link(), self.probe());
    }

    /// Renews the channel subscriptions after a reconnection, which loses them.
    async fn watch_link(&self) {
        loop {
            self.transport.reconnected().await;
            metrics::resubscribed("reconnect");
            self.state.renew.notify_one();
        }
    }

    pub(super) fn since_start(&self) -> Duration {
        self.started.elapsed()
    }

    /// Records that hints may be lost, now or already.
    fn mark_unhealthy(&self, why: &'static str) {
        if self.state.healthy() {
            tracing::warn!(
                operation = "backplane.listen",
                remedy = "the node looks at all inboxes",
                "{why}"
            );
            self.state.set_healthy(false);
            self.state.request_log_read();
        }
    }

    /// Sends probes. A connection can look alive and deliver nothing, and only a returned message
    /// disproves that.
    async fn probe(&self) {
        let own = self.redis.key(keys::node_channel(self.node));
        let mut renewed = Duration::ZERO;
        loop {
            let now = self.since_start();
            let text = now.as_micros().to_string();
            let probe = self.signer.sign(&own, self.signer.epoch(), &text);
            let probe = vec![(own.clone(), probe)];
            let sent = self.transport.publish_to_nodes(probe).await;
            if !sent {
                // Nothing else can be published either, so the node does not wait for the probe.
                self.mark_unhealthy("the backplane cannot be reached");
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
            let last_probe_at = *self.last_probe_at.lock();
            let now = self.since_start();
            if now.saturating_sub(last_probe_at) < MAX_SILENCE {
                continue;
            }
            self.mark_unhealthy("the backplane is silent");
            if now.saturating_sub(renewed) >= MAX_SILENCE {
                renewed = now;
                metrics::resubscribed("silence");
                self.transport.reconnect().await;
                self.state.renew.notify_one();
            }
        }
    }
}
