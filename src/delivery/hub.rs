//! Who is listening on this node, and what waits for them.
//!
//! A seat is one listener: a socket, or a poll that waits. What is queued for it is bounded, because it is a copy: a
//! body that does not fit is dropped, and the listener reads it from the inbox.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use super::heartbeat::Heartbeat;
use crate::{
    delivery::backplane::messages::EphemeralEvent,
    events::EncodedEvent,
    inbox::Delivery,
    limits::quotas::{
        MAX_EPHEMERAL_BYTES, MAX_EPHEMERAL_FRAMES, MAX_MAILBOX_BYTES, MAX_MAILBOX_FRAMES,
        NODE_LEASE,
    },
    metrics,
};

/// An event for one listener.
pub struct Item {
    /// Its number in the listener's inbox.
    pub seq: i64,
    /// The event; none if it is too large to come along.
    pub encoded: Option<EncodedEvent>,
}

/// Why a seat must be given up.
#[derive(Clone, Debug)]
pub enum End {
    /// Its credential no longer counts.
    Revoked {
        /// As `session.invalidated` says it.
        reason: &'static str,
    },
    /// The node stops; come back after the wait.
    Drain(Duration),
    /// Postgres may have lost its tail: numbers start anew.
    EpochChanged,
    /// Another connection has its slot.
    TooMany,
}

#[derive(Default)]
struct Mailbox {
    items: VecDeque<Item>,
    bytes: usize,
    ephemeral: VecDeque<EphemeralEvent>,
    aside_bytes: usize,
    /// The highest number heard of.
    head: i64,
    end: Option<End>,
}

/// What a seat had waiting.
#[derive(Default)]
pub struct Mail {
    /// In order of arrival.
    pub items: VecDeque<Item>,
    /// What is no event, in order of arrival; some may be missing.
    pub ephemeral: VecDeque<EphemeralEvent>,
    /// The highest number heard of; beyond the items if some were dropped or lost.
    pub head: i64,
    /// Set once the seat must be given up.
    pub end: Option<End>,
}

/// The place of a seat that does not know yet from where it reads.
pub const UNKNOWN_SEQ: i64 = i64::MAX;

/// One listener of one principal.
pub struct Subscription {
    /// Whose inbox it reads.
    pub principal: Uuid,
    /// The session or token that lets it.
    pub credential: Uuid,
    /// Whether it takes what is no event.
    ephemeral: bool,
    sent: AtomicI64,
    mailbox: Mutex<Mailbox>,
    bell: Notify,
    end_bell: Notify,
}

impl Subscription {
    /// A listener that has everything up to `sent`.
    pub fn new(principal: Uuid, credential: Uuid, sent: i64) -> Self {
        Subscription {
            principal,
            credential,
            ephemeral: false,
            sent: AtomicI64::new(sent),
            mailbox: Mutex::default(),
            bell: Notify::new(),
            end_bell: Notify::new(),
        }
    }

    /// The same, with ears for what is no event: a socket, not a poll.
    pub fn with_asides(self) -> Self {
        Subscription {
            ephemeral: true,
            ..self
        }
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock()
    }

    /// The last number handed to the client.
    pub fn sent(&self) -> i64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Notes that the client was handed everything up to `seq`.
    pub fn set_sent(&self, seq: i64) {
        self.sent.store(seq, Ordering::Release);
    }

    /// There is an event `seq`; its body too, if it came along. It is to be rung.
    fn note(&self, seq: i64, encoded: Option<&EncodedEvent>) {
        let mut mailbox = self.mailbox();
        mailbox.head = mailbox.head.max(seq);
        mailbox.push(seq, encoded);
    }

    /// The inbox has come as far as `head`.
    fn raise(&self, head: i64) {
        let mut mailbox = self.mailbox();
        mailbox.head = mailbox.head.max(head);
        drop(mailbox);
        self.bell.notify_one();
    }

    /// Somebody types, or a stream goes on.
    pub fn hear_aside(&self, ephemeral: &EphemeralEvent) {
        if self.ephemeral && self.mailbox().push_aside(ephemeral) {
            self.bell.notify_one();
        }
    }

    /// The seat must be given up. The first reason stands.
    pub fn end(&self, why: End) {
        self.mailbox().end.get_or_insert(why);
        self.bell.notify_one();
        self.end_bell.notify_one();
    }

    /// Whether the seat must be given up.
    pub fn is_ended(&self) -> bool {
        self.mailbox().end.is_some()
    }

    /// Waits until the seat must be given up.
    pub async fn ended(&self) {
        while !self.is_ended() {
            self.end_bell.notified().await;
        }
    }

    /// Waits until something has come since the last [`take`](Self::take).
    pub async fn notified(&self) {
        self.bell.notified().await;
    }

    /// Empties the mailbox.
    pub fn take(&self) -> Mail {
        let mut mailbox = self.mailbox();
        (mailbox.bytes, mailbox.aside_bytes) = (0, 0);
        Mail {
            items: std::mem::take(&mut mailbox.items),
            ephemeral: std::mem::take(&mut mailbox.ephemeral),
            head: mailbox.head,
            end: mailbox.end.clone(),
        }
    }
}

impl Mailbox {
    /// Whether so many bytes more are too many.
    fn is_full(&self, bytes: usize) -> bool {
        self.items.len() + self.ephemeral.len() >= MAX_MAILBOX_FRAMES
            || self.bytes + self.aside_bytes + bytes > MAX_MAILBOX_BYTES
    }

    fn push(&mut self, seq: i64, encoded: Option<&EncodedEvent>) {
        let bytes = encoded.map_or(0, |encoded| encoded.len());
        if self.is_full(bytes) && !self.items.is_empty() {
            metrics::mailbox_dropped();
            return;
        }
        self.bytes += bytes;
        self.items.push_back(Item {
            seq,
            encoded: encoded.cloned(),
        });
    }

    /// Whether there was room.
    fn push_aside(&mut self, ephemeral: &EphemeralEvent) -> bool {
        let bytes = self.aside_bytes + ephemeral.text.len();
        if self.ephemeral.len() >= MAX_EPHEMERAL_FRAMES
            || bytes > MAX_EPHEMERAL_BYTES
            || self.is_full(ephemeral.text.len())
        {
            metrics::aside_dropped();
            return false;
        }
        self.aside_bytes = bytes;
        self.ephemeral.push_back(ephemeral.clone());
        true
    }
}

/// A principal's first listener came or its last one went: the backplane's cue to subscribe or not.
#[derive(Clone, Copy, Debug)]
pub struct SubscriptionChange(pub Uuid);

/// The listeners of this node; clones share them.
#[derive(Clone)]
pub struct Registry {
    subscriptions: Arc<Mutex<HashMap<Uuid, Vec<Arc<Subscription>>>>>,
    /// Set once the node drains: who comes now is sent away at once.
    closed: Arc<AtomicBool>,
    /// Set while nobody can say whether the listeners' credentials still count: nothing is delivered.
    blind: Arc<AtomicBool>,
    heartbeat: Arc<Heartbeat>,
    interest: mpsc::UnboundedSender<SubscriptionChange>,
}

impl Registry {
    /// Empty; the receiver hears of every principal whose first listener comes or last one goes.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<SubscriptionChange>) {
        let (interest, changes) = mpsc::unbounded_channel();
        let heartbeat = Arc::new(Heartbeat::new());
        let (subscriptions, closed, blind) = (Arc::default(), Arc::default(), Arc::default());
        (
            Registry {
                subscriptions,
                closed,
                blind,
                heartbeat,
                interest,
            },
            changes,
        )
    }

    fn subscriptions(&self) -> MutexGuard<'_, HashMap<Uuid, Vec<Arc<Subscription>>>> {
        self.subscriptions.lock()
    }

    /// Takes a seat until the guard is dropped.
    pub fn join(&self, subscription: Subscription) -> SubscriptionGuard {
        let subscription = Arc::new(subscription);
        let mut subscriptions = self.subscriptions();
        let row = subscriptions.entry(subscription.principal).or_default();
        row.push(subscription.clone());
        if row.len() == 1 {
            // No receiver only while the node ends.
            self.interest
                .send(SubscriptionChange(subscription.principal))
                .ok();
        }
        // Under the lock, so that whoever closes the registry either finds this seat or is seen here.
        if self.closed.load(Ordering::Acquire) {
            subscription.end(End::Drain(Duration::ZERO));
        }
        drop(subscriptions);
        SubscriptionGuard {
            registry: self.clone(),
            subscription,
        }
    }

    /// Sends away whoever comes from now on, and returns those who are here.
    pub fn close(&self) -> Vec<Arc<Subscription>> {
        let subscriptions = self.subscriptions();
        self.closed.store(true, Ordering::Release);
        subscriptions.values().flatten().cloned().collect()
    }

    fn leave(&self, subscription: &Arc<Subscription>) {
        let mut subscriptions = self.subscriptions();
        let Some(row) = subscriptions.get_mut(&subscription.principal) else {
            return;
        };
        row.retain(|other| !Arc::ptr_eq(other, subscription));
        if row.is_empty() {
            subscriptions.remove(&subscription.principal);
            self.interest
                .send(SubscriptionChange(subscription.principal))
                .ok();
        }
    }

    /// Whether nothing may be delivered for now.
    pub fn is_fenced(&self) -> bool {
        self.blind.load(Ordering::Acquire) || self.heartbeat.age() > NODE_LEASE
    }

    /// Where the node's beat is felt.
    pub fn liveness(&self) -> impl Fn(bool) + Send + use<> {
        let registry = self.clone();
        move |frozen| registry.heartbeat(frozen)
    }

    /// The node's beat. After a freeze in which it lost its connections' slots, everyone is sent away, and nothing was
    /// delivered in between: until this is called, the node is blind.
    fn heartbeat(&self, frozen: bool) {
        if frozen {
            self.for_each(|subscription| subscription.end(End::Drain(Duration::ZERO)));
        }
        self.heartbeat.beat();
    }

    /// Stops deliveries, or lets them go on; those who missed something are then rung by their inbox's head.
    pub fn set_blind(&self, blind: bool) {
        self.blind.store(blind, Ordering::Release);
    }

    /// Whether anybody listens for `principal` here.
    pub fn listens(&self, principal: Uuid) -> bool {
        self.subscriptions().contains_key(&principal)
    }

    /// Tells listeners of an event, and `bells` whom it is to ring.
    pub fn deliver(
        &self,
        deliveries: &[Delivery],
        encoded: Option<&EncodedEvent>,
        bells: &mut Wakeups,
    ) {
        let subscriptions = self.subscriptions();
        for Delivery { principal, seq } in deliveries {
            for subscription in subscriptions.get(principal).into_iter().flatten() {
                subscription.note(*seq, encoded);
                bells.0.push(subscription.clone());
            }
        }
    }

    /// Tells the listeners of `principals`, but for one, of something that is no event.
    pub fn publish_ephemeral(
        &self,
        principals: &[Uuid],
        ephemeral: &EphemeralEvent,
        but: Option<&Subscription>,
    ) {
        let subscriptions = self.subscriptions();
        for subscription in principals
            .iter()
            .filter_map(|principal| subscriptions.get(principal))
            .flatten()
        {
            if !but.is_some_and(|but| std::ptr::eq(but, &**subscription)) {
                subscription.hear_aside(ephemeral);
            }
        }
    }

    /// Rings those listeners of `principal` that have less than `head`; returns how many those are.
    pub fn ring_behind(&self, principal: Uuid, head: i64) -> u64 {
        let subscriptions = self.subscriptions();
        let behind = subscriptions
            .get(&principal)
            .into_iter()
            .flatten()
            .filter(|subscription| {
                subscription.sent() < head || subscription.sent() == UNKNOWN_SEQ
            });
        behind.map(|subscription| subscription.raise(head)).count() as u64
    }

    /// Ends the seats that were let in by one of `credentials`.
    pub fn revoke(&self, credentials: &[Uuid], reason: &'static str) {
        self.for_each(|subscription| {
            if credentials.contains(&subscription.credential) {
                subscription.end(End::Revoked { reason });
            }
        });
    }

    /// Calls `with` for every seat.
    pub fn for_each(&self, with: impl Fn(&Arc<Subscription>)) {
        self.subscriptions().values().flatten().for_each(with);
    }

    /// Every seat, for whoever works on them one by one.
    pub fn all(&self) -> Vec<Arc<Subscription>> {
        self.subscriptions().values().flatten().cloned().collect()
    }
}

/// Who has been told something and is to be rung. Whoever is told several events before wakes up once, and writes them
/// as one.
#[derive(Default)]
pub struct Wakeups(Vec<Arc<Subscription>>);

impl Wakeups {
    /// Rings them.
    pub fn wake(&mut self) {
        self.0
            .drain(..)
            .for_each(|subscription| subscription.bell.notify_one());
    }

    /// Whether they should not wait for more.
    pub fn are_many(&self) -> bool {
        self.0.len() > 16 * 1024
    }
}

/// A taken seat; given up on drop.
pub struct SubscriptionGuard {
    registry: Registry,
    subscription: Arc<Subscription>,
}

impl SubscriptionGuard {
    /// The seat, for who must be able to end it.
    pub fn subscription(&self) -> Arc<Subscription> {
        self.subscription.clone()
    }
}

impl std::ops::Deref for SubscriptionGuard {
    type Target = Subscription;

    fn deref(&self) -> &Subscription {
        &self.subscription
    }
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        self.registry.leave(&self.subscription);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_in_passing_is_bounded_and_never_in_the_way_of_events() {
        let socket = Subscription::new(Uuid::nil(), Uuid::nil(), 0).with_asides();
        let (small, large): (Arc<str>, Arc<str>) = ("x".into(), "x".repeat(20_000).into());
        for n in 0..MAX_EPHEMERAL_FRAMES + 50 {
            socket.hear_aside(&EphemeralEvent {
                part: None,
                text: small.clone(),
            });
            socket.note(n as i64 + 1, Some(&small));
        }
        let mail = socket.take();
        assert_eq!(
            (mail.ephemeral.len(), mail.items.len()),
            (MAX_EPHEMERAL_FRAMES, MAX_EPHEMERAL_FRAMES + 50)
        );
        for _ in 0..100 {
            socket.hear_aside(&EphemeralEvent {
                part: None,
                text: large.clone(),
            });
        }
        assert_eq!(
            socket.take().ephemeral.len(),
            MAX_EPHEMERAL_BYTES / large.len()
        );

        for n in 0..2 * MAX_MAILBOX_FRAMES {
            socket.note(n as i64, Some(&small));
            socket.hear_aside(&EphemeralEvent {
                part: None,
                text: small.clone(),
            });
        }
        let mail = socket.take();
        assert_eq!(mail.items.len() + mail.ephemeral.len(), MAX_MAILBOX_FRAMES);
        // What was dropped is known to be there.
        assert_eq!(mail.head, 2 * MAX_MAILBOX_FRAMES as i64 - 1);
        for n in 0..100 {
            socket.note(n, Some(&large));
        }
        assert_eq!(socket.take().items.len(), MAX_MAILBOX_BYTES / large.len());

        let poll = Subscription::new(Uuid::nil(), Uuid::nil(), 0);
        poll.hear_aside(&EphemeralEvent {
            part: None,
            text: small,
        });
        assert!(poll.take().ephemeral.is_empty());
    }
}
