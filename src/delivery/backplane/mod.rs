//! Between the nodes: hints that something stands in an inbox, and orders to close what no longer counts.
//!
//! Nothing here is needed for correctness. Whoever commits an event tells the listeners on this node directly and the
//! others through one channel per principal, to which a node subscribes while it has a listener of that principal.
//! What is lost on the way is found by the [reconciliation](super::reconcile). Each node sends itself a probe every second: when it stays away,
//! subscriptions are made anew and the sweep runs four times as often.

pub(crate) mod messages;
mod pubsub;
pub(crate) mod tombstones;
pub(crate) mod worker;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use self::{
    messages::{ControlMessage, EphemeralEnvelope, EphemeralEvent, Hint, Hints, Wanted},
    tombstones::Tombstones,
};
pub use self::{pubsub::RedisPubSub, worker::PubSubWorker};
use crate::{
    delivery::hub::{Registry, Subscription, Wakeups},
    features::{
        conversations::audience::Audience,
        streams::table::{StreamId, Streams},
    },
    ids::{AgentId, NodeId},
    inbox::{AppendedEvent, Delivery},
    metrics,
    redis::{Redis, keys},
};

/// Messages that may wait to be published; more are dropped and left to the sweep.
const HINT_QUEUE_CAPACITY: usize = 8_192;
/// Orders that what is revoked no longer counts. They go first.
const CONTROL_QUEUE_CAPACITY: usize = 1_024;
/// What is said in passing, and goes last.
const EPHEMERAL_QUEUE_CAPACITY: usize = 4_096;
/// What other nodes may want of this one and has not been answered.
const REQUEST_QUEUE_CAPACITY: usize = 256;
/// Up to so many principals are told through their own channels, which only nodes that need to listen to. For more, one
/// message to every node costs less than one message each.
const MAX_DIRECT_RECIPIENTS: usize = 8;
/// Most that one message is for.
const MAX_SHARED_RECIPIENTS: usize = 1_024;

/// A channel and what is said there.
type Message = (String, String);

/// What waits to be published. What users can make much of is never in the way of what must not be late.
pub struct Outgoing {
    orders: mpsc::Receiver<Message>,
    hints: mpsc::Receiver<Message>,
    passing: mpsc::Receiver<Message>,
}

/// What the rest of the node sees: telling never waits and never fails; clones share it.
#[derive(Clone)]
pub struct Backplane {
    /// This node.
    pub node: NodeId,
    redis: Redis,
    pub(in crate::delivery) registry: Registry,
    pub(in crate::delivery) tombstones: Tombstones,
    /// The streams that this node knows.
    pub streams: Streams,
    /// Who hears what is said in passing.
    pub audience: Audience,
    orders: mpsc::Sender<Message>,
    hints: mpsc::Sender<Message>,
    passing: mpsc::Sender<Message>,
    requests: mpsc::Sender<ControlMessage>,
    state: Arc<State>,
}

/// What the parts of the backplane know together.
#[derive(Default)]
pub struct State {
    healthy: AtomicBool,
    pub(in crate::delivery) sweep_now: Notify,
    fresh: Mutex<Vec<Uuid>>,
    fresh_bell: Notify,
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

    /// Something may have been lost: look at once.
    fn suspect(&self) {
        self.sweep_now.notify_one();
    }

    /// These principals' channels have just been subscribed to.
    fn subscribed(&self, principals: &[Uuid]) {
        self.fresh.lock().extend(principals);
        self.fresh_bell.notify_one();
    }

    pub(in crate::delivery) async fn fresh(&self) -> Vec<Uuid> {
        self.fresh_bell.notified().await;
        std::mem::take(&mut *self.fresh.lock())
    }
}

impl Outgoing {
    /// Takes what is to be sent next; false at the end.
    async fn next(&mut self, batch: &mut Vec<Message>) -> bool {
        let first = tokio::select! {
            biased;
            Some(order) = self.orders.recv() => order,
            Some(hint) = self.hints.recv() => hint,
            Some(passing) = self.passing.recv() => passing,
            else => return false,
        };
        batch.push(first);
        while batch.len() < worker::MAX_BATCH_MESSAGES {
            let Ok(next) = self.orders.try_recv().or_else(|_| self.hints.try_recv()) else {
                break;
            };
            batch.push(next);
        }
        // So few at a time that what comes first need not wait for them.
        while batch.len() < worker::MAX_BATCH_MESSAGES / 8 {
            let Ok(next) = self.passing.try_recv() else {
                break;
            };
            batch.push(next);
        }
        true
    }
}

impl Backplane {
    /// The telling half, what [`PubSubWorker`] will publish, and what other nodes will want of this one.
    pub fn new(
        node: NodeId,
        redis: Redis,
        registry: Registry,
        tombstones: Tombstones,
        streams: Streams,
        audience: Audience,
    ) -> (Self, Outgoing, mpsc::Receiver<ControlMessage>) {
        let (orders, first) = mpsc::channel(CONTROL_QUEUE_CAPACITY);
        let (hints, second) = mpsc::channel(HINT_QUEUE_CAPACITY);
        let (passing, last) = mpsc::channel(EPHEMERAL_QUEUE_CAPACITY);
        let (requests, wanted) = mpsc::channel(REQUEST_QUEUE_CAPACITY);
        let state = Arc::default();
        let backplane = Backplane {
            node,
            redis,
            registry,
            tombstones,
            streams,
            audience,
            orders,
            hints,
            passing,
            requests,
            state,
        };
        (
            backplane,
            Outgoing {
                orders: first,
                hints: second,
                passing: last,
            },
            wanted,
        )
    }

    /// What the links and the sweep share.
    pub fn state(&self) -> Arc<State> {
        self.state.clone()
    }

    /// Tells every listener of events that have been committed. A listener of several of them wakes up once.
    pub fn publish(&self, events: &[AppendedEvent]) {
        let mut bells = Wakeups::default();
        for event in events {
            self.audience.note(&event.encoded);
            self.registry
                .deliver(&event.deliveries, Some(&event.encoded), &mut bells);
        }
        bells.wake();
        events.iter().for_each(|event| self.hint(event));
    }

    /// Tells the other nodes.
    fn hint(&self, event: &AppendedEvent) {
        if event.deliveries.len() > MAX_DIRECT_RECIPIENTS {
            for some in event.deliveries.chunks(MAX_SHARED_RECIPIENTS) {
                self.enqueue(
                    &self.hints,
                    keys::many_channel(),
                    Hints::encode(self.node, some, &event.encoded),
                );
            }
            return;
        }
        for Delivery { principal, seq } in &event.deliveries {
            let hint = Hint::encode(self.node, *seq, &event.encoded);
            self.enqueue(&self.hints, keys::inbox_channel(*principal), hint);
        }
    }

    /// Tells the sockets of `principals`, but for one of them, something that is no event.
    pub fn publish_ephemeral(
        &self,
        principals: &[Uuid],
        ephemeral: &EphemeralEvent,
        but: Option<&Subscription>,
    ) {
        self.registry.publish_ephemeral(principals, ephemeral, but);
        if principals.len() > MAX_DIRECT_RECIPIENTS {
            for some in principals.chunks(MAX_SHARED_RECIPIENTS) {
                let text = EphemeralEnvelope::encode(self.node, some, ephemeral);
                self.enqueue(&self.passing, keys::many_channel(), text);
            }
            return;
        }
        let text = EphemeralEnvelope::encode(self.node, &[], ephemeral);
        for principal in principals {
            self.enqueue(&self.passing, keys::inbox_channel(*principal), text.clone());
        }
    }

    /// The same on this node only.
    pub fn whisper_here(&self, principals: &[Uuid], ephemeral: &EphemeralEvent) {
        self.registry.publish_ephemeral(principals, ephemeral, None);
    }

    /// A stream begins here: whoever held one of this name before must forget it.
    pub fn claim_stream(&self, agent: AgentId, stream: StreamId) {
        self.pass(&ControlMessage::StreamMoved {
            to: self.node,
            agent,
            stream,
        });
    }

    /// Asks all nodes for what has been said, from delta `from` on, in the stream of this name that `listener` may hear.
    pub fn ask_for_stream(&self, listener: Uuid, stream: StreamId, from: u64) {
        self.pass(&ControlMessage::StreamWanted(Wanted {
            by: self.node,
            listener,
            stream,
            from,
        }));
    }

    /// Tells a node what it has asked for; nothing while much else waits, for it can ask again.
    pub fn tell_stream(&self, by: NodeId, ephemeral: &[EphemeralEvent]) {
        if self.passing.capacity() < EPHEMERAL_QUEUE_CAPACITY / 2 {
            return metrics::hints("dropped", ephemeral.len() as u64);
        }
        for ephemeral in ephemeral {
            self.enqueue(
                &self.passing,
                keys::node_channel(by),
                EphemeralEnvelope::encode(self.node, &[], ephemeral),
            );
        }
    }

    /// What another node wants of the streams that began here.
    fn request(&self, order: ControlMessage) {
        if self.requests.try_send(order).is_err() {
            metrics::hints("dropped", 1);
        }
    }

    /// Closes the sockets of credentials that have been revoked, here and everywhere, and sees to it that they stay so.
    pub fn invalidate(&self, credentials: Vec<Uuid>, reason: &'static str) {
        self.tombstones.raise(&credentials, reason);
        self.registry.revoke(&credentials, reason);
        self.order(
            &self.orders,
            &ControlMessage::Invalidate {
                credentials,
                reason: reason.to_owned(),
            },
        );
    }

    /// Says something about a stream to every node.
    pub fn pass(&self, order: &ControlMessage) {
        self.order(&self.passing, order);
    }

    fn order(&self, queue: &mpsc::Sender<Message>, order: &ControlMessage) {
        if let Ok(text) = serde_json::to_string(order) {
            self.enqueue(queue, keys::control_channel(), text);
        }
    }

    fn enqueue(&self, queue: &mpsc::Sender<Message>, channel: String, text: String) {
        if queue.try_send((self.redis.key(channel), text)).is_err() {
            metrics::hints("dropped", 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_said_in_passing_keeps_nothing_else_waiting_or_out() {
        let [(orders, first), (hints, second), (passing, last)] = [
            CONTROL_QUEUE_CAPACITY,
            HINT_QUEUE_CAPACITY,
            EPHEMERAL_QUEUE_CAPACITY,
        ]
        .map(mpsc::channel::<Message>);
        let mut outgoing = Outgoing {
            orders: first,
            hints: second,
            passing: last,
        };
        let message = |text: &str| (String::new(), text.to_owned());
        while passing.try_send(message("passing")).is_ok() {}
        hints.try_send(message("hint")).expect("room");
        orders.try_send(message("order")).expect("room");
        let mut batch = Vec::new();
        assert!(outgoing.next(&mut batch).await);
        let kinds: Vec<_> = batch.iter().map(|(_, kind)| kind.as_str()).collect();
        assert_eq!(kinds[..3], ["order", "hint", "passing"]);
        assert_eq!(kinds.len(), worker::MAX_BATCH_MESSAGES / 8);
    }
}
