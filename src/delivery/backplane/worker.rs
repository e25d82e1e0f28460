//! The tasks that keep the connection to other nodes: publishing, subscriptions, probe.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as Queue, Notify, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::{Backplane, Outgoing, State, pubsub::PubSub, seal::Seal};
use crate::{
    delivery::hub::{Hub, SubscriptionChange},
    ids::NodeId,
    metrics,
    redis::{Redis, keys},
    supervisor,
};

/// Most messages of a pipeline.
pub(super) const MAX_BATCH_MESSAGES: usize = 512;
/// Most channels of a SUBSCRIBE.
const MAX_SUBSCRIBE_CHANNELS: usize = 1024;
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
    pub(super) seal: Seal,
    pub(super) state: Arc<State>,
    started: Instant,
    /// The time of the last probe that came back, since the start.
    pub(super) last_probe_at: Mutex<Duration>,
    /// Notified when all subscriptions must be made anew.
    renew: Notify,
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
        let links = Arc::new(PubSubWorker {
            node: backplane.node,
            transport,
            redis: backplane.redis.clone(),
            hub: backplane.hub.clone(),
            backplane: backplane.clone(),
            seal: backplane.seal.clone(),
            state: backplane.state(),
            started: Instant::now(),
            last_probe_at: Mutex::default(),
            renew: Notify::new(),
        });
        // The queues outlive a task that panics and starts again.
        let outgoing = Arc::new(Queue::new(outgoing));
        let interest = Arc::new(Queue::new(interest));
        let own = links.clone();
        supervisor::spawn_until(tasks, stop, "backplane.publish", move || {
            let (links, outgoing) = (own.clone(), outgoing.clone());
            async move { links.publish(&mut *outgoing.lock().await).await }
        });
        let own = links.clone();
        supervisor::spawn_until(tasks, stop, "backplane.subscribe", move || {
            let (links, interest) = (own.clone(), interest.clone());
            async move { links.subscribe(&mut *interest.lock().await).await }
        });
        let own = links.clone();
        supervisor::spawn_until(tasks, stop, "backplane.receive", move || {
            own.clone().receive()
        });
        let own = links.clone();
        supervisor::spawn_until(tasks, stop, "backplane.watch_link", move || {
            own.clone().watch_link()
        });
        supervisor::spawn_until(tasks, stop, "backplane.probe", move || {
            links.clone().probe()
        });
    }

    /// Sends waiting messages as a pipeline, since waiting for each would cost a round trip per
    /// message.
    async fn publish(self: Arc<Self>, outgoing: &mut Outgoing) {
        let mut batch = Vec::with_capacity(MAX_BATCH_MESSAGES);
        while outgoing.next(&mut batch).await {
            // Each piece is small enough for Redis to take well within a call's deadline.
            let sealed = batch.drain(..).map(|one| {
                let sealed = self.seal.seal(&one.channel, one.epoch, &one.text);
                (one.channel, sealed)
            });
            for piece in pieces(sealed.collect()) {
                let n = piece.len() as u64;
                let sent = self.transport.publish(piece).await;
                metrics::hints(if sent { "published" } else { "lost" }, n);
            }
        }
    }

    /// Keeps the channel subscriptions equal to the principals in the hub.
    async fn subscribe(
        self: Arc<Self>,
        interest: &mut mpsc::UnboundedReceiver<SubscriptionChange>,
    ) {
        let mut held: HashSet<Uuid> = HashSet::new();
        let mut changes = Vec::new();
        self.renew.notify_one();
        loop {
            tokio::select! {
                biased;
                () = self.renew.notified() => {
                    while !self.renew_all(&mut held).await {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
                n = interest.recv_many(&mut changes, MAX_SUBSCRIBE_CHANNELS) => {
                    if n == 0 {
                        return;
                    }
                    self.follow(&mut held, changes.drain(..).map(|SubscriptionChange(principal)| principal)).await;
                }
            }
        }
    }

    async fn follow(&self, held: &mut HashSet<Uuid>, changed: impl Iterator<Item = Uuid>) {
        let changed: HashSet<Uuid> = changed.collect();
        let (wanted, unwanted): (Vec<Uuid>, Vec<Uuid>) =
            changed.into_iter().partition(|one| self.hub.listens(*one));
        let new: Vec<Uuid> = wanted.into_iter().filter(|one| held.insert(*one)).collect();
        let old: Vec<Uuid> = unwanted
            .into_iter()
            .filter(|one| held.remove(one))
            .collect();
        if !new.is_empty() {
            if !self.transport.subscribe(self.channels(&new)).await {
                // It is unknown which of them succeeded, so all are remade.
                self.renew.notify_one();
            }
            self.state.subscribed(&new);
        }
        if !old.is_empty() {
            // A superfluous channel only costs messages that no subscription here takes.
            self.transport.unsubscribe(self.channels(&old)).await;
        }
    }

    fn channels(&self, principals: &[Uuid]) -> Vec<String> {
        principals
            .iter()
            .map(|one| self.redis.key(keys::inbox_channel(*one)))
            .collect()
    }

    async fn renew_all(&self, held: &mut HashSet<Uuid>) -> bool {
        let wanted: HashSet<Uuid> = self.hub.principals().into_iter().collect();
        let gone: Vec<Uuid> = held.difference(&wanted).copied().collect();
        *held = wanted;
        if !gone.is_empty() {
            self.transport.unsubscribe(self.channels(&gone)).await;
        }
        let standing = [
            keys::control_channel(),
            keys::many_channel(),
            keys::node_channel(self.node),
        ];
        if !self
            .transport
            .subscribe(standing.map(|name| self.redis.key(name)).into())
            .await
        {
            return false;
        }
        let principals: Vec<Uuid> = held.iter().copied().collect();
        for chunk in principals.chunks(MAX_SUBSCRIBE_CHANNELS) {
            if !self.transport.subscribe(self.channels(chunk)).await {
                return false;
            }
        }
        self.state.suspect();
        true
    }

    /// Renews the channel subscriptions after a reconnection, which loses them.
    async fn watch_link(self: Arc<Self>) {
        loop {
            self.transport.reconnected().await;
            metrics::resubscribed("reconnect");
            self.renew.notify_one();
        }
    }

    pub(super) fn since_start(&self) -> Duration {
        self.started.elapsed()
    }

    /// Records that hints may be lost, now or already.
    fn doubt(&self, why: &'static str) {
        if self.state.healthy() {
            tracing::warn!(
                operation = "backplane.listen",
                remedy = "the node sweeps faster",
                "{why}"
            );
            self.state.set_healthy(false);
            self.state.suspect();
        }
    }

    /// Sends probes. A connection can look alive and deliver nothing, and only a returned message
    /// disproves that.
    async fn probe(self: Arc<Self>) {
        let own = self.redis.key(keys::node_channel(self.node));
        let mut renewed = Duration::ZERO;
        loop {
            let now = self.since_start();
            let text = now.as_micros().to_string();
            let probe = self.seal.seal(&own, self.seal.epoch(), &text);
            let sent = self.transport.publish(vec![(own.clone(), probe)]).await;
            if !sent {
                // Nothing else can be published either, so the node does not wait for the probe.
                self.doubt("the backplane cannot be reached");
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
            let last_probe_at = *self.last_probe_at.lock();
            let now = self.since_start();
            if now.saturating_sub(last_probe_at) < MAX_SILENCE {
                continue;
            }
            self.doubt("the backplane is silent");
            if now.saturating_sub(renewed) >= MAX_SILENCE {
                renewed = now;
                metrics::resubscribed("silence");
                self.transport.reconnect().await;
                self.renew.notify_one();
            }
        }
    }
}

/// Most bytes of a pipeline.
const MAX_PIPELINE_BYTES: usize = 512 * 1024;

fn pieces(batch: Vec<(String, String)>) -> Vec<Vec<(String, String)>> {
    let mut pieces = vec![Vec::new()];
    let mut bytes = 0;
    for message in batch {
        bytes += message.1.len();
        if bytes > MAX_PIPELINE_BYTES {
            pieces.push(Vec::new());
            bytes = message.1.len();
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(message);
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}
