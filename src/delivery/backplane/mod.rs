//! The backplane carries hints, ephemeral events and control messages between the nodes.
//!
//! Correctness does not need any of it. A node that commits an event wakes its own subscriptions
//! directly and notifies the other nodes through a channel per principal. A node subscribes to a
//! principal's channel while it has a subscription of that principal.
//! [Reconciliation](super::reconcile) finds what is lost on the way. Each node sends itself a probe
//! every second. If the probe stays away, the node subscribes anew and reconciles four times as
//! often. Every message is sealed ([`seal`]).

pub(crate) mod messages;
mod publisher;
mod pubsub;
mod receiver;
pub mod seal;
pub(crate) mod tombstones;
mod worker;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use blindpipe_protocol::revocation::RevocationReason;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use uuid::Uuid;

use self::{
    messages::{ControlMessage, Hint, Hints},
    publisher::{Message, Publisher, Urgency},
    seal::Seal,
    tombstones::Tombstones,
};
pub use self::{
    publisher::Outgoing,
    pubsub::{PubSub, RedisPubSub},
    worker::PubSubWorker,
};
use super::{
    ephemeral::{EphemeralEnvelope, EphemeralEvent, EphemeralHandler},
    hub::{Hub, Wakeups},
    subscription::Subscription,
};
use crate::{
    events::EncodedEvent,
    ids::NodeId,
    inbox::{AppendedEvent, Delivery},
    metrics,
    redis::{Redis, keys},
};

/// Most recipients that are notified through their own channels, which only the nodes concerned
/// listen to. For more, a message to every node is cheaper.
const MAX_DIRECT_RECIPIENTS: usize = 8;
/// Most recipients of a message to every node.
const MAX_SHARED_RECIPIENTS: usize = 1_024;

/// A callback for every event that this node commits or receives, before its subscriptions get it.
pub type EventObserver = Arc<dyn Fn(&EncodedEvent) + Send + Sync>;

/// A callback with the principals concerned.
type PrincipalsObserver = Box<dyn Fn(&mut dyn Iterator<Item = Uuid>) + Send + Sync>;

/// The publishing half, for the rest of the node. It never waits and never fails. Clones share it.
#[derive(Clone)]
pub struct Backplane {
    /// The id of this node.
    pub node: NodeId,
    redis: Redis,
    pub(super) hub: Hub,
    pub(super) tombstones: Tombstones,
    pub(super) seal: Seal,
    observer: EventObserver,
    handler: Arc<dyn EphemeralHandler>,
    publisher: Publisher,
    state: Arc<State>,
}

/// The state that the backplane and the reconciler share.
#[derive(Default)]
pub struct State {
    healthy: AtomicBool,
    /// The highest epoch that another node's message named.
    newest_epoch: AtomicU64,
    suspicion_notify: Notify,
    demand_notify: Notify,
    fresh: Mutex<Vec<Uuid>>,
    fresh_notify: Notify,
    /// Called with the principals of events that this node has committed.
    on_published: OnceLock<PrincipalsObserver>,
    /// Called with the agents whose webhooks another node has woken.
    on_webhooks_woken: OnceLock<PrincipalsObserver>,
    /// Revocations that other nodes announced and Postgres has not confirmed yet.
    announced: Mutex<Vec<Announcement>>,
    announced_notify: Notify,
}

/// A credential with a subscription here that another node says is revoked.
pub(super) struct Announcement {
    pub credential: Uuid,
    pub reason: RevocationReason,
}

impl State {
    /// Whether the last probes came back.
    pub fn healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Relaxed);
        metrics::backplane_healthy(healthy);
    }

    /// Requests a reconciliation at once, because something may have been lost.
    pub(super) fn suspect(&self) {
        self.suspicion_notify.notify_one();
        self.demand_round();
    }

    /// Waits for a suspicion.
    pub(super) async fn suspected(&self) {
        self.suspicion_notify.notified().await;
    }

    /// Requests a round over all inboxes.
    pub(super) fn demand_round(&self) {
        self.demand_notify.notify_one();
    }

    /// Waits for a demanded round.
    pub(super) async fn demanded(&self) {
        self.demand_notify.notified().await;
    }

    /// Whether this epoch is higher than any that a message named before.
    fn is_news(&self, epoch: u64) -> bool {
        self.newest_epoch.fetch_max(epoch, Ordering::Relaxed) < epoch
    }

    /// Records that the node has just subscribed to these principals' channels.
    fn subscribed(&self, principals: &[Uuid]) {
        self.fresh.lock().extend(principals);
        self.fresh_notify.notify_one();
    }

    /// Records announced revocations, which [`invalidation`](super::invalidation) confirms.
    fn announce(&self, announcements: impl Iterator<Item = Announcement>) {
        self.announced.lock().extend(announcements);
        self.announced_notify.notify_one();
    }

    /// Waits for announced revocations.
    pub(super) async fn announced(&self) -> Vec<Announcement> {
        self.announced_notify.notified().await;
        std::mem::take(&mut *self.announced.lock())
    }

    /// Waits for principals whose channels the node has just subscribed to.
    pub(super) async fn fresh(&self) -> Vec<Uuid> {
        self.fresh_notify.notified().await;
        std::mem::take(&mut *self.fresh.lock())
    }
}

impl Backplane {
    /// The publishing half, and the queues for [`PubSubWorker`].
    pub fn new(
        seal: Seal,
        redis: Redis,
        hub: Hub,
        tombstones: Tombstones,
        observer: EventObserver,
        handler: Arc<dyn EphemeralHandler>,
    ) -> (Self, Outgoing) {
        let (publisher, outgoing) = Publisher::new();
        let backplane = Backplane {
            node: seal.node(),
            redis,
            hub,
            tombstones,
            seal,
            observer,
            handler,
            publisher,
            state: Arc::default(),
        };
        (backplane, outgoing)
    }

    /// The state that the backplane and the reconciler share.
    pub fn state(&self) -> Arc<State> {
        self.state.clone()
    }

    /// The subscriptions of this node.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Sets the callback for principals that got an event from this node.
    pub fn on_published(
        &self,
        tell: impl Fn(&mut dyn Iterator<Item = Uuid>) + Send + Sync + 'static,
    ) {
        self.state.on_published.set(Box::new(tell)).ok();
    }

    /// Sets the callback for agents whose webhooks another node has woken.
    pub fn on_webhooks_woken(
        &self,
        tell: impl Fn(&mut dyn Iterator<Item = Uuid>) + Send + Sync + 'static,
    ) {
        self.state.on_webhooks_woken.set(Box::new(tell)).ok();
    }

    /// Notifies the workers of other nodes that turns are due. `held` are agents with new events
    /// whose turns a worker holds.
    pub fn wake_webhooks(&self, held: Vec<Uuid>) {
        let message = ControlMessage::WakeWebhooks {
            from: self.node,
            held,
        };
        self.control(Urgency::Hint, &message);
    }

    /// Delivers committed events to all subscriptions. A subscription with several of them wakes
    /// once.
    pub fn publish(&self, events: &[AppendedEvent]) {
        let mut wakeups = Wakeups::default();
        for event in events {
            (self.observer)(&event.encoded);
            self.hub
                .deliver(&event.deliveries, Some(&event.encoded), &mut wakeups);
        }
        wakeups.wake();
        if let Some(tell) = self.state.on_published.get() {
            let deliveries = events.iter().flat_map(|event| &event.deliveries);
            tell(&mut deliveries.map(|delivery| delivery.principal));
        }
        events.iter().for_each(|event| self.hint(event));
    }

    /// Notifies the other nodes.
    fn hint(&self, event: &AppendedEvent) {
        if event.deliveries.len() > MAX_DIRECT_RECIPIENTS {
            for some in event.deliveries.chunks(MAX_SHARED_RECIPIENTS) {
                let hints = Hints::encode(self.node, some, &event.encoded);
                self.enqueue(Urgency::Hint, keys::many_channel(), hints);
            }
            return;
        }
        for Delivery { principal, seq } in &event.deliveries {
            let hint = Hint::encode(self.node, *seq, &event.encoded);
            self.enqueue(Urgency::Hint, keys::inbox_channel(*principal), hint);
        }
    }

    /// Sends an ephemeral event to the sockets of `principals` on all nodes, except `but`.
    pub fn publish_ephemeral(
        &self,
        principals: &[Uuid],
        event: &EphemeralEvent,
        but: Option<&Subscription>,
    ) {
        self.hub.publish_ephemeral(principals, event, but);
        if principals.len() > MAX_DIRECT_RECIPIENTS {
            for some in principals.chunks(MAX_SHARED_RECIPIENTS) {
                let text = EphemeralEnvelope::encode(self.node, some, event);
                self.enqueue(Urgency::Ephemeral, keys::many_channel(), text);
            }
            return;
        }
        let text = EphemeralEnvelope::encode(self.node, &[], event);
        for principal in principals {
            let channel = keys::inbox_channel(*principal);
            self.enqueue(Urgency::Ephemeral, channel, text.clone());
        }
    }

    /// Sends an ephemeral event to the sockets of `principals` on this node only.
    pub fn publish_ephemeral_here(&self, principals: &[Uuid], event: &EphemeralEvent) {
        self.hub.publish_ephemeral(principals, event, None);
    }

    /// Answers a node's request with ephemeral events for its handler. A busy node sends none,
    /// since the other node can ask again.
    pub fn answer_node(&self, to: NodeId, events: &[EphemeralEvent]) {
        if self.publisher.is_busy() {
            return metrics::hints("dropped", events.len() as u64);
        }
        for event in events {
            let text = EphemeralEnvelope::encode(self.node, &[], event);
            self.enqueue(Urgency::Ephemeral, keys::node_channel(to), text);
        }
    }

    /// Sends a control message of a feature to the handlers of all nodes.
    pub fn publish_control(&self, message: &impl Serialize) {
        self.control(Urgency::Ephemeral, message);
    }

    /// Ends the subscriptions of revoked credentials on all nodes, and keeps tombstones of them.
    pub fn invalidate(&self, credentials: Vec<Uuid>, reason: RevocationReason) {
        self.tombstones.raise(&credentials, reason);
        self.hub.revoke(&credentials, reason);
        let message = ControlMessage::Invalidate {
            credentials,
            reason: reason.to_string(),
        };
        self.control(Urgency::Control, &message);
    }

    fn control(&self, urgency: Urgency, message: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(message) {
            self.enqueue(urgency, keys::control_channel(), text);
        }
    }

    fn enqueue(&self, urgency: Urgency, channel: String, text: String) {
        let (channel, epoch) = (self.redis.key(channel), self.seal.epoch());
        let message = Message {
            channel,
            epoch,
            text,
        };
        self.publisher.publish(urgency, message);
    }
}
