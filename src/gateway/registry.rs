//! Who is listening on this node, and what waits for them.
//!
//! A seat is one listener: a socket, or a poll that waits. What is queued for it is bounded, because it is a copy: a
//! body that does not fit is dropped, and the listener reads it from the inbox.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use super::pulse::Pulse;
use crate::{
    backplane::message::Aside,
    events::Tail,
    features::inbox::Delivery,
    limits::quotas::{ASIDE_BYTES, ASIDE_FRAMES, MAILBOX_BYTES, MAILBOX_FRAMES, NODE_LIFE},
    metrics as series,
};

/// An event for one listener.
pub struct Item {
    /// Its number in the listener's inbox.
    pub seq: i64,
    /// The event; none if it is too large to come along.
    pub tail: Option<Tail>,
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
    asides: VecDeque<Aside>,
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
    pub asides: VecDeque<Aside>,
    /// The highest number heard of; beyond the items if some were dropped or lost.
    pub head: i64,
    /// Set once the seat must be given up.
    pub end: Option<End>,
}

/// The place of a seat that does not know yet from where it reads.
pub const UNKNOWN: i64 = i64::MAX;

/// One listener of one principal.
pub struct Seat {
    /// Whose inbox it reads.
    pub principal: Uuid,
    /// The session or token that lets it.
    pub credential: Uuid,
    /// Whether it takes what is no event.
    asides: bool,
    sent: AtomicI64,
    mailbox: Mutex<Mailbox>,
    bell: Notify,
    end_bell: Notify,
}

impl Seat {
    /// A listener that has everything up to `sent`.
    pub fn new(principal: Uuid, credential: Uuid, sent: i64) -> Self {
        Seat {
            principal,
            credential,
            asides: false,
            sent: AtomicI64::new(sent),
            mailbox: Mutex::default(),
            bell: Notify::new(),
            end_bell: Notify::new(),
        }
    }

    /// The same, with ears for what is no event: a socket, not a poll.
    pub fn with_asides(self) -> Self {
        Seat { asides: true, ..self }
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn note(&self, seq: i64, tail: Option<&Tail>) {
        let mut mailbox = self.mailbox();
        mailbox.head = mailbox.head.max(seq);
        mailbox.push(seq, tail);
    }

    /// The inbox has come as far as `head`.
    fn raise(&self, head: i64) {
        let mut mailbox = self.mailbox();
        mailbox.head = mailbox.head.max(head);
        drop(mailbox);
        self.bell.notify_one();
    }

    /// Somebody types, or a stream goes on.
    pub fn hear_aside(&self, aside: &Aside) {
        if self.asides && self.mailbox().push_aside(aside) {
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
    pub async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Empties the mailbox.
    pub fn take(&self) -> Mail {
        let mut mailbox = self.mailbox();
        (mailbox.bytes, mailbox.aside_bytes) = (0, 0);
        Mail {
            items: std::mem::take(&mut mailbox.items),
            asides: std::mem::take(&mut mailbox.asides),
            head: mailbox.head,
            end: mailbox.end.clone(),
        }
    }
}

impl Mailbox {
    /// Whether so many bytes more are too many.
    fn is_full(&self, bytes: usize) -> bool {
        self.items.len() + self.asides.len() >= MAILBOX_FRAMES
            || self.bytes + self.aside_bytes + bytes > MAILBOX_BYTES
    }

    fn push(&mut self, seq: i64, tail: Option<&Tail>) {
        let bytes = tail.map_or(0, |tail| tail.len());
        if self.is_full(bytes) && !self.items.is_empty() {
            series::mailbox_dropped();
            return;
        }
        self.bytes += bytes;
        self.items.push_back(Item { seq, tail: tail.cloned() });
    }

    /// Whether there was room.
    fn push_aside(&mut self, aside: &Aside) -> bool {
        let bytes = self.aside_bytes + aside.text.len();
        if self.asides.len() >= ASIDE_FRAMES || bytes > ASIDE_BYTES || self.is_full(aside.text.len()) {
            series::aside_dropped();
            return false;
        }
        self.aside_bytes = bytes;
        self.asides.push_back(aside.clone());
        true
    }
}

/// A principal's first listener came or its last one went: the backplane's cue to subscribe or not.
#[derive(Clone, Copy, Debug)]
pub struct Interest(pub Uuid);

/// The listeners of this node; clones share them.
#[derive(Clone)]
pub struct Registry {
    seats: Arc<Mutex<HashMap<Uuid, Vec<Arc<Seat>>>>>,
    /// Set once the node drains: who comes now is sent away at once.
    closed: Arc<AtomicBool>,
    /// Set while nobody can say whether the listeners' credentials still count: nothing is delivered.
    blind: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    interest: mpsc::UnboundedSender<Interest>,
}

impl Registry {
    /// Empty; the receiver hears of every principal whose first listener comes or last one goes.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Interest>) {
        let (interest, changes) = mpsc::unbounded_channel();
        let pulse = Arc::new(Pulse::new());
        let (seats, closed, blind) = (Arc::default(), Arc::default(), Arc::default());
        (Registry { seats, closed, blind, pulse, interest }, changes)
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<Uuid, Vec<Arc<Seat>>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat until the guard is dropped.
    pub fn join(&self, seat: Seat) -> Joined {
        let seat = Arc::new(seat);
        let mut seats = self.seats();
        let row = seats.entry(seat.principal).or_default();
        row.push(seat.clone());
        if row.len() == 1 {
            // No receiver only while the node ends.
            self.interest.send(Interest(seat.principal)).ok();
        }
        // Under the lock, so that whoever closes the registry either finds this seat or is seen here.
        if self.closed.load(Ordering::Acquire) {
            seat.end(End::Drain(Duration::ZERO));
        }
        drop(seats);
        Joined { registry: self.clone(), seat }
    }

    /// Sends away whoever comes from now on, and returns those who are here.
    pub fn close(&self) -> Vec<Arc<Seat>> {
        let seats = self.seats();
        self.closed.store(true, Ordering::Release);
        seats.values().flatten().cloned().collect()
    }

    fn leave(&self, seat: &Arc<Seat>) {
        let mut seats = self.seats();
        let Some(row) = seats.get_mut(&seat.principal) else { return };
        row.retain(|other| !Arc::ptr_eq(other, seat));
        if row.is_empty() {
            seats.remove(&seat.principal);
            self.interest.send(Interest(seat.principal)).ok();
        }
    }

    /// Whether nothing may be delivered for now.
    pub fn is_blind(&self) -> bool {
        self.blind.load(Ordering::Acquire) || self.pulse.age() > NODE_LIFE
    }

    /// Where the node's beat is felt.
    pub fn heart(&self) -> impl Fn(bool) + Send + use<> {
        let registry = self.clone();
        move |frozen| registry.pulse(frozen)
    }

    /// The node's beat. After a freeze in which it lost its connections' slots, everyone is sent away, and nothing was
    /// delivered in between: until this is called, the node is blind.
    fn pulse(&self, frozen: bool) {
        if frozen {
            self.for_each(|seat| seat.end(End::Drain(Duration::ZERO)));
        }
        self.pulse.beat();
    }

    /// Stops deliveries, or lets them go on; those who missed something are then rung by their inbox's head.
    pub fn set_blind(&self, blind: bool) {
        self.blind.store(blind, Ordering::Release);
    }

    /// Whether anybody listens for `principal` here.
    pub fn listens(&self, principal: Uuid) -> bool {
        self.seats().contains_key(&principal)
    }

    /// Tells listeners of an event, and `bells` whom it is to ring.
    pub fn deliver(&self, deliveries: &[Delivery], tail: Option<&Tail>, bells: &mut Bells) {
        let seats = self.seats();
        for Delivery { principal, seq } in deliveries {
            for seat in seats.get(principal).into_iter().flatten() {
                seat.note(*seq, tail);
                bells.0.push(seat.clone());
            }
        }
    }

    /// Tells the listeners of `principals`, but for one, of something that is no event.
    pub fn whisper(&self, principals: &[Uuid], aside: &Aside, but: Option<&Seat>) {
        let seats = self.seats();
        for seat in principals.iter().filter_map(|principal| seats.get(principal)).flatten() {
            if !but.is_some_and(|but| std::ptr::eq(but, &**seat)) {
                seat.hear_aside(aside);
            }
        }
    }

    /// Rings those listeners of `principal` that have less than `head`; returns how many those are.
    pub fn ring_behind(&self, principal: Uuid, head: i64) -> u64 {
        let seats = self.seats();
        let behind = seats
            .get(&principal)
            .into_iter()
            .flatten()
            .filter(|seat| seat.sent() < head || seat.sent() == UNKNOWN);
        behind.map(|seat| seat.raise(head)).count() as u64
    }

    /// Ends the seats that were let in by one of `credentials`.
    pub fn revoke(&self, credentials: &[Uuid], reason: &'static str) {
        self.for_each(|seat| {
            if credentials.contains(&seat.credential) {
                seat.end(End::Revoked { reason });
            }
        });
    }

    /// Calls `with` for every seat.
    pub fn for_each(&self, with: impl Fn(&Arc<Seat>)) {
        self.seats().values().flatten().for_each(with);
    }

    /// Every seat, for whoever works on them one by one.
    pub fn all(&self) -> Vec<Arc<Seat>> {
        self.seats().values().flatten().cloned().collect()
    }
}

/// Who has been told something and is to be rung. Whoever is told several events before wakes up once, and writes them
/// as one.
#[derive(Default)]
pub struct Bells(Vec<Arc<Seat>>);

impl Bells {
    /// Rings them.
    pub fn ring(&mut self) {
        self.0.drain(..).for_each(|seat| seat.bell.notify_one());
    }

    /// Whether they should not wait for more.
    pub fn are_many(&self) -> bool {
        self.0.len() > 16 * 1024
    }
}

/// A taken seat; given up on drop.
pub struct Joined {
    registry: Registry,
    seat: Arc<Seat>,
}

impl Joined {
    /// The seat, for who must be able to end it.
    pub fn seat(&self) -> Arc<Seat> {
        self.seat.clone()
    }
}

impl std::ops::Deref for Joined {
    type Target = Seat;

    fn deref(&self) -> &Seat {
        &self.seat
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.registry.leave(&self.seat);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_in_passing_is_bounded_and_never_in_the_way_of_events() {
        let socket = Seat::new(Uuid::nil(), Uuid::nil(), 0).with_asides();
        let (small, large): (Arc<str>, Arc<str>) = ("x".into(), "x".repeat(20_000).into());
        for n in 0..ASIDE_FRAMES + 50 {
            socket.hear_aside(&Aside { part: None, text: small.clone() });
            socket.note(n as i64 + 1, Some(&small));
        }
        let mail = socket.take();
        assert_eq!((mail.asides.len(), mail.items.len()), (ASIDE_FRAMES, ASIDE_FRAMES + 50));
        for _ in 0..100 {
            socket.hear_aside(&Aside { part: None, text: large.clone() });
        }
        assert_eq!(socket.take().asides.len(), ASIDE_BYTES / large.len());

        for n in 0..2 * MAILBOX_FRAMES {
            socket.note(n as i64, Some(&small));
            socket.hear_aside(&Aside { part: None, text: small.clone() });
        }
        let mail = socket.take();
        assert_eq!(mail.items.len() + mail.asides.len(), MAILBOX_FRAMES);
        // What was dropped is known to be there.
        assert_eq!(mail.head, 2 * MAILBOX_FRAMES as i64 - 1);
        for n in 0..100 {
            socket.note(n, Some(&large));
        }
        assert_eq!(socket.take().items.len(), MAILBOX_BYTES / large.len());

        let poll = Seat::new(Uuid::nil(), Uuid::nil(), 0);
        poll.hear_aside(&Aside { part: None, text: small });
        assert!(poll.take().asides.is_empty());
    }
}
