//! The backplane carries hints, ephemeral events and control messages between the nodes.
//!
//! Correctness does not need any of it. A node that commits an event wakes its own subscriptions
//! directly. It asks the [`directory`] which other nodes serve one of the recipients, and sends
//! each of them a single message. [Reconciliation](super::reconcile) finds what is lost on the way.
//!
//! Every message is signed ([`message_mac`]). Its head numbers the messages from a node to a node, so the
//! receiver knows of a loss with the next message. Where none follows, the sender says its last
//! number. Each node sends itself a probe every second. If the probe stays away, the node
//! subscribes anew and looks at all inboxes meanwhile.
//!
//! Why: ADR 67.

mod directory;
pub mod message_mac;
pub(crate) mod messages;
mod outbound;
pub(super) mod pending;
mod publisher;
mod pubsub;
mod receiver;
pub(crate) mod tombstones;
mod worker;

use std::{
    collections::HashSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use blindpipe_protocol::revocation::RevocationReason;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

#[cfg(test)]
pub use self::pubsub::Incoming;
use self::{
    message_mac::MessageSigner,
    messages::ControlMessage,
    pending::Pending,
    publisher::{Content, Message, Publisher, Urgency},
    tombstones::Tombstones,
};
pub use self::{
    publisher::Outgoing,
    pubsub::{PubSub, RedisPubSub},
    worker::PubSubWorker,
};
use super::{
    ephemeral::{EphemeralEvent, EphemeralHandler},
    hub::{Hub, Wakeups},
    subscription::Subscription,
    unpublished_hints::{PublishGuard, UnpublishedHints},
};
use crate::{
    events::EncodedEvent,
    ids::{AgentId, CredentialId, NodeId, PrincipalId},
    inbox::{AppendedEvent, Delivery, InboxHead},
    metrics,
    redis::{LiveNodes, Redis},
};

/// Most recipients of a message.
const MAX_MESSAGE_RECIPIENTS: usize = 1_024;

/// A callback for every event that this node commits or receives, before its subscriptions get it.
pub type EventObserver = Arc<dyn Fn(&EncodedEvent) + Send + Sync>;

/// A callback with the events of a commit.
type PublishedObserver = Box<dyn Fn(&[AppendedEvent]) + Send + Sync>;

/// A callback with the agents concerned.
type AgentsObserver = Box<dyn Fn(&mut dyn Iterator<Item = AgentId>) + Send + Sync>;

/// The publishing half, for the rest of the node. It never waits and never fails. Clones share it.
#[derive(Clone)]
pub struct Backplane {
    /// The id of this node.
    pub node: NodeId,
    redis: Redis,
    pub(super) hub: Hub,
    pub(super) tombstones: Tombstones,
    pub(super) signer: MessageSigner,
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
    log_read_notify: Notify,
    is_full_scan_requested: AtomicBool,
    full_scan_notify: Notify,
    /// Hints that this node could not publish.
    pub(crate) unpublished_hints: UnpublishedHints,
    /// Nodes whose heartbeat was late at the last one of this node.
    late_nodes: Mutex<HashSet<String>>,
    /// Signs that a node has died.
    pub(super) dead_nodes: Pending<()>,
    /// Principals that this node serves, as other nodes have just learnt.
    pub(super) new_principals: Pending<PrincipalId>,
    /// Called with the events that this node has committed.
    on_published: RwLock<Vec<PublishedObserver>>,
    /// Called with the agents whose webhooks another node has woken. Only a node that delivers has
    /// it.
    on_webhooks_woken: OnceLock<AgentsObserver>,
    /// Revocations that other nodes published and Postgres has not confirmed yet.
    pub(super) revocation_notices: Pending<RevocationNotice>,
    /// Notified when the channels and the directory's entries of this node must be made anew.
    renew: Notify,
}

/// A credential with a subscription here that another node says is revoked.
#[derive(Clone)]
pub(super) struct RevocationNotice {
    pub credential: CredentialId,
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
    pub(super) fn request_log_read(&self) {
        self.log_read_notify.notify_one();
        self.request_full_scan();
    }

    /// Waits for a suspicion.
    pub(super) async fn log_read_requested(&self) {
        self.log_read_notify.notified().await;
    }

    /// Requests a full scan over all inboxes.
    pub(super) fn request_full_scan(&self) {
        self.is_full_scan_requested.store(true, Ordering::Release);
        self.full_scan_notify.notify_one();
    }

    /// Whether a full scan over all inboxes was requested since the last call.
    pub(super) fn take_full_scan_request(&self) -> bool {
        self.is_full_scan_requested.swap(false, Ordering::AcqRel)
    }

    /// Looks for signs that a node has died since the last heartbeat: it may have committed events
    /// that it did not publish. A late heartbeat is the first sign, the end of the lease the
    /// second. Between them Postgres may still finish the node's last statements. Of the nodes that
    /// are in time, the one with the lowest id acts.
    fn note_nodes(&self, own: &str, live_nodes: &LiveNodes) {
        let late: HashSet<String> = live_nodes.late.iter().cloned().collect();
        let mut before = self.late_nodes.lock();
        let mut listed = live_nodes.nodes.split(',');
        let is_listed = |node: &String| live_nodes.nodes.split(',').any(|other| other == node);
        let is_sign =
            late.iter().any(|node| !before.contains(node)) || !before.iter().all(is_listed);
        let is_lowest = listed.all(|node| node >= own || late.contains(node));
        if is_sign && is_lowest {
            self.dead_nodes.extend([()]);
        }
        *before = late;
    }

    /// Whether this node delivers webhooks.
    fn delivers_webhooks(&self) -> bool {
        self.on_webhooks_woken.get().is_some()
    }

    /// Waits for a requested full scan.
    pub(super) async fn full_scan_requested(&self) {
        self.full_scan_notify.notified().await;
    }

    /// Whether this epoch is higher than any that a message named before.
    fn is_news(&self, epoch: u64) -> bool {
        self.newest_epoch.fetch_max(epoch, Ordering::Relaxed) < epoch
    }
}

impl Backplane {
    /// The publishing half, and the queues for [`PubSubWorker`].
    pub fn new(
        signer: MessageSigner,
        redis: Redis,
        hub: Hub,
        tombstones: Tombstones,
        observer: EventObserver,
        handler: Arc<dyn EphemeralHandler>,
    ) -> (Self, Outgoing) {
        let (publisher, outgoing) = Publisher::new();
        let backplane = Backplane {
            node: signer.node(),
            redis,
            hub,
            tombstones,
            signer,
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

    /// Adds a callback for events that this node has published.
    pub fn on_published(&self, observe: impl Fn(&[AppendedEvent]) + Send + Sync + 'static) {
        self.state.on_published.write().push(Box::new(observe));
    }

    /// Lists this node among those that deliver webhooks, and sets the callback for agents whose
    /// webhooks another node has woken.
    pub fn on_webhooks_woken(
        &self,
        observe: impl Fn(&mut dyn Iterator<Item = AgentId>) + Send + Sync + 'static,
    ) {
        self.state.on_webhooks_woken.set(Box::new(observe)).ok();
        self.state.renew.notify_one();
    }

    /// Notifies the workers of other nodes that turns are due. `held` are agents with new events
    /// whose turns a worker holds.
    pub fn wake_webhooks(&self, held: Vec<AgentId>) {
        let message = ControlMessage::WakeWebhooks {
            from: self.node,
            held,
        };
        if let Ok(text) = serde_json::to_string(&message) {
            self.enqueue(Urgency::Hint, Content::WakeWebhooks { text });
        }
    }

    /// The number of nodes that lived at the last heartbeat; at least 1.
    pub fn nodes(&self) -> u32 {
        self.redis.nodes()
    }

    /// Delivers committed events to all subscriptions. A subscription with several of them wakes
    /// once.
    pub fn publish(&self, events: &[AppendedEvent]) {
        let mut wakeups = Wakeups::default();
        for event in events {
            (self.observer)(&event.encoded);
            let heads = event.deliveries.iter().map(Delivery::head);
            self.hub.deliver(heads, Some(&event.encoded), &mut wakeups);
        }
        wakeups.wake();
        for observe in &*self.state.on_published.read() {
            observe(events);
        }
        for event in events {
            for some in event.deliveries.chunks(MAX_MESSAGE_RECIPIENTS) {
                let hint = Content::Hint {
                    heads: some.iter().map(Delivery::head).collect(),
                    encoded: event.encoded.clone(),
                    trace: event.trace,
                };
                self.enqueue(Urgency::Hint, hint);
            }
        }
    }

    /// Publishes the numbers that inboxes have reached, for subscriptions that are behind. Returns
    /// how many those of this node are.
    pub(super) fn publish_heads(&self, heads: &[InboxHead]) -> u64 {
        for some in heads.chunks(MAX_MESSAGE_RECIPIENTS) {
            let heads = some.to_vec();
            self.enqueue(Urgency::Hint, Content::Heads { heads });
        }
        let behind = heads
            .iter()
            .map(|one| self.hub.wake_behind(one.principal, one.seq));
        behind.sum()
    }

    /// Notes the inboxes of events about to be committed. If the caller does not learn that they
    /// are, every node looks at them.
    pub fn guard(&self, events: &[AppendedEvent]) -> PublishGuard {
        let deliveries = events.iter().flat_map(|event| &event.deliveries);
        let inboxes = deliveries.map(|delivery| delivery.recipient.id());
        self.state.unpublished_hints.guard(inboxes.collect())
    }

    /// Notes that events may be committed that nobody publishes, in inboxes that nobody knows.
    pub fn note_unknown_commit(&self) {
        self.state.unpublished_hints.note_unknown();
    }

    /// The callback for the node's heartbeats. Its arguments are the live nodes, and whether Redis
    /// may have forgotten what this node wrote.
    pub fn on_beat(&self) -> impl Fn(&LiveNodes, bool) + Send + Sync + use<> {
        let (state, own) = (self.state.clone(), self.node.to_string());
        move |live_nodes, is_forgotten| {
            state.note_nodes(&own, live_nodes);
            if is_forgotten {
                state.renew.notify_one();
            }
        }
    }

    /// Sends an ephemeral event to the sockets of `principals` on all nodes, except `but`.
    pub fn publish_ephemeral(
        &self,
        principals: &[PrincipalId],
        event: &EphemeralEvent,
        but: Option<&Subscription>,
    ) {
        self.hub.publish_ephemeral(principals, event, but);
        for some in principals.chunks(MAX_MESSAGE_RECIPIENTS) {
            let (principals, event) = (some.to_vec(), event.clone());
            self.enqueue(Urgency::Ephemeral, Content::Ephemeral { principals, event });
        }
    }

    /// Sends an ephemeral event to the sockets of `principals` on this node only.
    pub fn publish_ephemeral_here(&self, principals: &[PrincipalId], event: &EphemeralEvent) {
        self.hub.publish_ephemeral(principals, event, None);
    }

    /// Queues the number of the last message to a node.
    fn send_last_sequence(&self, to: NodeId) {
        self.enqueue(Urgency::Hint, Content::LastSequence { to });
    }

    /// Ends the subscriptions of revoked credentials on all nodes, and keeps tombstones of them.
    pub fn invalidate(&self, credentials: Vec<CredentialId>, reason: RevocationReason) {
        self.tombstones.raise(&credentials, reason);
        self.hub.revoke(&credentials, reason);
        let message = ControlMessage::Invalidate {
            credentials,
            reason: reason.to_string(),
        };
        self.control(&message);
    }

    fn control(&self, message: &ControlMessage) {
        if let Ok(text) = serde_json::to_string(message) {
            self.enqueue(Urgency::Control, Content::Control { text });
        }
    }

    fn enqueue(&self, urgency: Urgency, content: Content) {
        let epoch = self.signer.epoch();
        if let Err(dropped) = self.publisher.publish(urgency, Message { epoch, content }) {
            self.state.unpublished_hints.note(dropped.content.inboxes());
        }
    }
}
