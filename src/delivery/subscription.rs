//! A subscription and its mailbox.
//!
//! The mailbox is bounded because it holds copies. A body that does not fit is dropped, and the
//! subscription reads it from the inbox.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use blindpipe_protocol::revocation::RevocationReason;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::ephemeral::{EphemeralEvent, EphemeralQueue};
use crate::{
    cursor::Cursor,
    events::EncodedEvent,
    ids::{CredentialId, PrincipalId},
    limits::{
        buffers::{ByteBudget, BytePermit, Owner},
        quotas::{FREE_SOCKET_BYTES, MAX_MAILBOX_BYTES, MAX_MAILBOX_FRAMES},
    },
    metrics,
};

/// An event for a subscription.
pub struct Item {
    /// The event's number in the inbox.
    pub seq: i64,
    /// The event; none if it is too large to come along.
    pub encoded: Option<EncodedEvent>,
}

/// The reason that a subscription must end.
#[derive(Clone, Debug)]
pub enum End {
    /// Its credential was revoked.
    Revoked {
        /// As `session.invalidated` says it.
        reason: RevocationReason,
    },
    /// The node stops. The client reconnects after the wait.
    Drain(Duration),
    /// Postgres may have lost its tail: numbers start anew.
    EpochChanged {
        /// The inbox's head in the new epoch.
        head: Cursor,
    },
    /// Another connection has its slot.
    TooMany,
}

#[derive(Default)]
struct Mailbox {
    items: VecDeque<Item>,
    bytes: usize,
    ephemeral: EphemeralQueue,
    /// The highest known number.
    head: i64,
    end: Option<End>,
    /// The bytes beyond [`FREE_SOCKET_BYTES`].
    permit: Option<BytePermit>,
    /// The arrival of the oldest item.
    since: Option<Instant>,
}

/// The content of a mailbox.
#[derive(Default)]
pub struct Mail {
    /// Events in order of arrival.
    pub items: VecDeque<Item>,
    /// Ephemeral events in order of arrival; some may be missing.
    pub ephemeral: VecDeque<EphemeralEvent>,
    /// The highest known number. It is beyond the items if some were dropped or lost.
    pub head: i64,
    /// Set once the subscription must end.
    pub end: Option<End>,
    /// Held until the content is written.
    pub permit: Option<BytePermit>,
    /// The arrival of the oldest item; none without items.
    pub since: Option<Instant>,
}

/// The position of a subscription before its bounds are read.
pub const UNKNOWN_SEQ: i64 = i64::MAX;

/// A local reader of an inbox.
pub struct Subscription {
    /// The owner of the inbox.
    pub principal: PrincipalId,
    /// The session or token that authorises the subscription.
    pub credential: CredentialId,
    /// Whether it takes ephemeral events.
    ephemeral: bool,
    sent: AtomicI64,
    /// The epoch of its numbers; 0 until they are known.
    epoch: AtomicU64,
    mailbox: Mutex<Mailbox>,
    /// The budget of a large mailbox.
    buffers: Option<ByteBudget>,
    notify: Notify,
    end_notify: Notify,
}

impl Subscription {
    /// A subscription that has everything up to `sent`.
    pub fn new(principal: PrincipalId, credential: CredentialId, sent: i64) -> Self {
        Subscription {
            principal,
            credential,
            ephemeral: false,
            sent: AtomicI64::new(sent),
            epoch: AtomicU64::new(0),
            mailbox: Mutex::default(),
            buffers: None,
            notify: Notify::new(),
            end_notify: Notify::new(),
        }
    }

    /// Takes ephemeral events too, for a socket and not a poll.
    pub fn with_ephemeral(self) -> Self {
        Subscription {
            ephemeral: true,
            ..self
        }
    }

    /// Holds more than [`FREE_SOCKET_BYTES`] only within the budget.
    pub fn with_buffers(self, buffers: ByteBudget) -> Self {
        Subscription {
            buffers: Some(buffers),
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

    /// Begins after `cursor`.
    pub fn set_start(&self, cursor: Cursor) {
        self.set_sent(cursor.seq);
        self.epoch.store(cursor.epoch, Ordering::Release);
    }

    /// The epoch of its numbers, once it has begun.
    pub fn epoch(&self) -> Option<u64> {
        Some(self.epoch.load(Ordering::Acquire)).filter(|epoch| *epoch != 0)
    }

    /// Notes that the client was handed everything up to `seq`.
    pub fn set_sent(&self, seq: i64) {
        self.sent.store(seq, Ordering::Release);
    }

    /// Queues event `seq`, with its body if there is one. The caller wakes the subscription.
    pub(super) fn note(&self, seq: i64, encoded: Option<&EncodedEvent>) {
        let mut mailbox = self.mailbox();
        mailbox.head = mailbox.head.max(seq);
        let bytes = encoded.map_or(0, |encoded| encoded.len());
        if mailbox.is_full(bytes) && !mailbox.items.is_empty() || !self.admit(&mut mailbox, bytes) {
            metrics::mailbox_dropped();
            return;
        }
        mailbox.push(seq, encoded);
    }

    /// Takes the bytes that a large mailbox needs out of the budget.
    fn admit(&self, mailbox: &mut Mailbox, bytes: usize) -> bool {
        let Some(buffers) = &self.buffers else {
            return true;
        };
        let held = mailbox.permit.as_ref().map_or(0, BytePermit::bytes);
        let wanted = mailbox.bytes + mailbox.ephemeral.bytes() + bytes;
        let more = wanted.saturating_sub(FREE_SOCKET_BYTES + held);
        if more == 0 {
            return true;
        }
        match &mut mailbox.permit {
            Some(permit) => permit.grow(more).is_ok(),
            none => {
                *none = buffers.take(Owner::Principal(self.principal), more).ok();
                none.is_some()
            }
        }
    }

    /// Records that the inbox has reached `head`, and wakes the subscription.
    pub(super) fn raise(&self, head: i64) {
        let mut mailbox = self.mailbox();
        mailbox.head = mailbox.head.max(head);
        drop(mailbox);
        self.wake();
    }

    /// Wakes the subscription.
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Queues an ephemeral event, if the subscription takes them.
    pub(super) fn note_ephemeral(&self, event: &EphemeralEvent) {
        if self.ephemeral && self.mailbox().push_ephemeral(event) {
            self.wake();
        }
    }

    /// Ends the subscription. The first reason stands.
    pub fn end(&self, why: End) {
        {
            let end = &mut self.mailbox().end;
            // A revocation cuts a drain short. Else the first reason stays.
            let cuts = matches!((&*end, &why), (Some(End::Drain(_)), End::Revoked { .. }));
            if end.is_none() || cuts {
                *end = Some(why);
            }
        }
        self.wake();
        self.end_notify.notify_one();
    }

    /// Whether the subscription must end.
    pub fn is_ended(&self) -> bool {
        self.mailbox().end.is_some()
    }

    /// Waits until the subscription must end.
    pub async fn ended(&self) {
        while !self.is_ended() {
            self.end_notify.notified().await;
        }
    }

    /// Waits until the subscription's credential is revoked.
    pub async fn revoked(&self) {
        while !matches!(self.mailbox().end, Some(End::Revoked { .. })) {
            self.end_notify.notified().await;
        }
    }

    /// Waits for news since the last [`take`](Self::take).
    pub async fn notified(&self) {
        self.notify.notified().await;
    }

    /// Empties the mailbox.
    pub fn take(&self) -> Mail {
        let mut mailbox = self.mailbox();
        mailbox.bytes = 0;
        Mail {
            items: std::mem::take(&mut mailbox.items),
            ephemeral: mailbox.ephemeral.take(),
            head: mailbox.head,
            end: mailbox.end.clone(),
            permit: mailbox.permit.take(),
            since: mailbox.since.take(),
        }
    }
}

impl Mailbox {
    /// Whether `bytes` more would be too many.
    fn is_full(&self, bytes: usize) -> bool {
        self.items.len() + self.ephemeral.len() >= MAX_MAILBOX_FRAMES
            || self.bytes + self.ephemeral.bytes() + bytes > MAX_MAILBOX_BYTES
    }

    fn push(&mut self, seq: i64, encoded: Option<&EncodedEvent>) {
        let bytes = encoded.map_or(0, |encoded| encoded.len());
        self.bytes += bytes;
        self.since.get_or_insert_with(Instant::now);
        self.items.push_back(Item {
            seq,
            encoded: encoded.cloned(),
        });
    }

    /// Queues an ephemeral event; false if there was no room.
    fn push_ephemeral(&mut self, event: &EphemeralEvent) -> bool {
        let is_full = self.is_full(event.body.len());
        self.ephemeral.push(event, is_full)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limits::quotas::{MAX_EPHEMERAL_BYTES, MAX_EPHEMERAL_FRAMES};

    fn subscription() -> Subscription {
        Subscription::new(PrincipalId::NIL, CredentialId::NIL, 0)
    }

    #[test]
    fn what_is_said_in_passing_is_bounded_and_never_in_the_way_of_events() {
        let socket = subscription().with_ephemeral();
        let (small, large): (Arc<str>, Arc<str>) = ("x".into(), "x".repeat(20_000).into());
        for n in 0..MAX_EPHEMERAL_FRAMES + 50 {
            socket.note_ephemeral(&EphemeralEvent::new(small.clone()));
            socket.note(n as i64 + 1, Some(&small));
        }
        let mail = socket.take();
        assert_eq!(
            (mail.ephemeral.len(), mail.items.len()),
            (MAX_EPHEMERAL_FRAMES, MAX_EPHEMERAL_FRAMES + 50)
        );
        for _ in 0..100 {
            socket.note_ephemeral(&EphemeralEvent::new(large.clone()));
        }
        assert_eq!(
            socket.take().ephemeral.len(),
            MAX_EPHEMERAL_BYTES / large.len()
        );

        for n in 0..2 * MAX_MAILBOX_FRAMES {
            socket.note(n as i64, Some(&small));
            socket.note_ephemeral(&EphemeralEvent::new(small.clone()));
        }
        let mail = socket.take();
        assert_eq!(mail.items.len() + mail.ephemeral.len(), MAX_MAILBOX_FRAMES);
        // The head still covers the dropped events.
        assert_eq!(mail.head, 2 * MAX_MAILBOX_FRAMES as i64 - 1);
        for n in 0..100 {
            socket.note(n, Some(&large));
        }
        assert_eq!(socket.take().items.len(), MAX_MAILBOX_BYTES / large.len());

        let poll = subscription();
        poll.note_ephemeral(&EphemeralEvent::new(small));
        assert!(poll.take().ephemeral.is_empty());
    }
}
