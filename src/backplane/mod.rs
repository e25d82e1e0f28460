//! Between the nodes: hints that something stands in an inbox, and orders to close what no longer counts.
//!
//! Nothing here is needed for correctness. Whoever commits an event tells the listeners on this node directly and the
//! others through one channel per principal, to which a node subscribes while it has a listener of that principal.
//! What is lost on the way is found by the [`sweep`]. Each node sends itself a probe every second: when it stays away,
//! subscriptions are made anew and the sweep runs four times as often.

mod links;
pub mod message;
mod pubsub;
pub mod sweep;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use self::message::{Aside, Hint, Hints, Order, Whisper};
pub use self::{
    links::Links,
    pubsub::{PubSub, RedisPubSub},
};
use crate::{
    features::inbox::{Delivery, Told},
    gateway::{
        registry::{Registry, Seat},
        streams::{StreamId, Streams},
    },
    ids::{AgentId, NodeId},
    metrics as series,
    redis::{Redis, keys},
};

/// Messages that may wait to be published; more are dropped and left to the sweep.
const QUEUE: usize = 8_192;
/// Up to so many principals are told through their own channels, which only nodes that need to listen to. For more, one
/// message to every node costs less than one message each.
const FEW: usize = 8;
/// Most that one message is for.
const MANY: usize = 1_024;

/// What the rest of the node sees: telling never waits and never fails; clones share it.
#[derive(Clone)]
pub struct Backplane {
    node: NodeId,
    redis: Redis,
    registry: Registry,
    /// The streams that this node knows.
    pub streams: Streams,
    outgoing: mpsc::Sender<(String, String)>,
    state: Arc<State>,
}

/// What the parts of the backplane know together.
#[derive(Default)]
pub struct State {
    healthy: AtomicBool,
    sweep_now: Notify,
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
        series::backplane_healthy(healthy);
    }

    /// Something may have been lost: look at once.
    fn suspect(&self) {
        self.sweep_now.notify_one();
    }

    /// These principals' channels have just been subscribed to.
    fn subscribed(&self, principals: &[Uuid]) {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).extend(principals);
        self.fresh_bell.notify_one();
    }

    async fn fresh(&self) -> Vec<Uuid> {
        self.fresh_bell.notified().await;
        std::mem::take(&mut *self.fresh.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Backplane {
    /// The telling half, and what [`Links`] will publish.
    pub fn new(
        node: NodeId,
        redis: Redis,
        registry: Registry,
        streams: Streams,
    ) -> (Self, mpsc::Receiver<(String, String)>) {
        let (outgoing, waiting) = mpsc::channel(QUEUE);
        (Backplane { node, redis, registry, streams, outgoing, state: Arc::default() }, waiting)
    }

    /// What the links and the sweep share.
    pub fn state(&self) -> Arc<State> {
        self.state.clone()
    }

    /// Tells every listener of an event that has been committed.
    pub fn tell(&self, told: &Told) {
        self.registry.deliver_all(&told.deliveries, Some(&told.tail));
        if told.deliveries.len() > FEW {
            for some in told.deliveries.chunks(MANY) {
                self.publish(keys::many_channel(), Hints::encode(self.node, some, &told.tail));
            }
            return;
        }
        for Delivery { principal, seq } in &told.deliveries {
            self.publish(keys::inbox_channel(*principal), Hint::encode(self.node, *seq, &told.tail));
        }
    }

    /// Tells the sockets of `principals`, but for one of them, something that is no event.
    pub fn whisper(&self, principals: &[Uuid], aside: &Aside, but: Option<&Seat>) {
        self.registry.whisper(principals, aside, but);
        if principals.len() > FEW {
            for some in principals.chunks(MANY) {
                self.publish(keys::many_channel(), Whisper::encode(self.node, some, aside));
            }
            return;
        }
        let text = Whisper::encode(self.node, &[], aside);
        for principal in principals {
            self.publish(keys::inbox_channel(*principal), text.clone());
        }
    }

    /// The same on this node only.
    pub fn whisper_here(&self, principals: &[Uuid], aside: &Aside) {
        self.registry.whisper(principals, aside, None);
    }

    /// A stream begins here: whoever held one of this name before must forget it.
    pub fn claim_stream(&self, agent: AgentId, stream: StreamId) {
        self.order(&Order::StreamMoved { to: self.node, agent, stream });
    }

    /// Asks all nodes for what has been said in streams of this name.
    pub fn ask_for_stream(&self, stream: StreamId) {
        self.order(&Order::StreamWanted { by: self.node, stream });
    }

    /// Tells a node what has been said in the streams of this name that began here.
    fn tell_stream(&self, by: NodeId, stream: &StreamId) {
        for aside in self.streams.recall(stream) {
            self.publish(keys::node_channel(by), Whisper::encode(self.node, &[], &aside));
        }
    }

    /// Closes the sockets of credentials that have been revoked, here and everywhere.
    pub fn invalidate(&self, credentials: Vec<Uuid>, reason: &'static str) {
        self.registry.revoke(&credentials, reason);
        self.order(&Order::Invalidate { credentials, reason: reason.to_owned() });
    }

    fn order(&self, order: &Order) {
        if let Ok(text) = serde_json::to_string(order) {
            self.publish(keys::control_channel(), text);
        }
    }

    fn publish(&self, channel: String, text: String) {
        if self.outgoing.try_send((self.redis.key(channel), text)).is_err() {
            series::hints("dropped", 1);
        }
    }
}
