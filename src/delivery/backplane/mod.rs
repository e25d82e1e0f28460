//! The backplane carries hints, ephemeral events and control messages between the nodes.
//!
//! Correctness does not need any of it. A node that commits an event wakes its own subscriptions
//! directly and notifies the other nodes through a channel per principal. A node subscribes to a
//! principal's channel while it has a subscription of that principal.
//! [Reconciliation](super::reconcile) finds what is lost on the way. Each node sends itself a probe
//! every second. If the probe stays away, the node subscribes anew and reconciles four times as
//! often.

pub(crate) mod messages;
mod publisher;
mod pubsub;
mod receiver;
pub(crate) mod tombstones;
mod worker;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use blindpipe_protocol::revocation::RevocationReason;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;
use uuid::Uuid;

use self::{
    messages::{ControlMessage, Hint, Hints},
    publisher::{Publisher, Urgency},
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

/// The publishing half, for the rest of the node. It never waits and never fails. Clones share it.
#[derive(Clone)]
pub struct Backplane {
    /// The id of this node.
    pub node: NodeId,
    redis: Redis,
    pub(super) hub: Hub,
    pub(super) tombstones: Tombstones,
    observer: EventObserver,
    handler: Arc<dyn EphemeralHandler>,
    publisher: Publisher,
    state: Arc<State>,
}

/// The state that the backplane and the reconciler share.
#[derive(Default)]
pub struct State {
    healthy: AtomicBool,
    pub(super) reconcile_now: Notify,
    fresh: Mutex<Vec<Uuid>>,
    fresh_notify: Notify,
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
    fn suspect(&self) {
        self.reconcile_now.notify_one();
    }

    /// Records that the node has just subscribed to these principals' channels.
    fn subscribed(&self, principals: &[Uuid]) {
        self.fresh.lock().extend(principals);
        self.fresh_notify.notify_one();
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
        node: NodeId,
        redis: Redis,
        hub: Hub,
        tombstones: Tombstones,
        observer: EventObserver,
        handler: Arc<dyn EphemeralHandler>,
    ) -> (Self, Outgoing) {
        let (publisher, outgoing) = Publisher::new();
        let backplane = Backplane {
            node,
            redis,
            hub,
            tombstones,
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
        self.publisher
            .publish(urgency, self.redis.key(channel), text);
    }
}
