//! The outgoing side of a session: events in their order, and ephemeral events between them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{Expiry, Session};
use crate::{
    delivery::{End, EphemeralEvent},
    error::Error,
    events::EncodedEvent,
    features::streams::{Replay, SyncAnswer, without_the_past},
    gateway::{
        close::{self, Close, SessionEnd},
        commands::{answer, refuse},
        ephemeral_frames::RefusedFrame,
        reorder_buffer::{Page, Reader},
        socket::Socket,
    },
    limits::{
        buffers::{BytePermit, Owner},
        quotas::{FREE_SOCKET_BYTES, MAX_PAGE_EVENTS, SOCKET_PAGE_BYTES},
    },
    metrics,
};

/// The shortest and the longest pause after a page that could not be read.
const MIN_READ_RETRY: Duration = Duration::from_secs(1);
const MAX_READ_RETRY: Duration = Duration::from_secs(5);
/// The longest time for which a drain answers a socket's sends.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl Session<'_> {
    /// Sends the events in the mailbox, and reads the missing ones from the inbox.
    pub(super) async fn deliver(&mut self, socket: &mut Socket) -> Result<(), SessionEnd> {
        let mail = self.subscription.take();
        if let Some(mut end) = mail.end {
            if let End::Drain(_) = end {
                Box::pin(self.answer_waiting(socket)).await?;
                end = self.subscription.take().end.unwrap_or(end);
            }
            return Err(self.close_with(end, socket));
        }
        if self.expiry == Expiry::Expired {
            // The inbox keeps the events. The session reads them when the token is renewed.
            self.reorder_buffer.clear();
            return Ok(());
        }
        if self.client.shared.is_some() {
            if mail.head > self.subscription.sent() {
                Box::pin(self.step(socket)).await?;
            }
            return self.write_ephemeral(mail.ephemeral, socket).await;
        }
        let (events, since) = (mail.items.len(), mail.since);
        // An ephemeral event must follow the events before it, so a gap before it is read at once.
        let is_urgent = !mail.ephemeral.is_empty();
        let mut reorder_buffer = std::mem::take(&mut self.reorder_buffer);
        let mut reader = SocketReader(self, socket);
        let delivering = reorder_buffer.deliver(mail.items, mail.head, is_urgent, &mut reader);
        let outcome = delivering.await;
        self.reorder_buffer = reorder_buffer;
        outcome?;
        self.write_ephemeral(mail.ephemeral, socket).await?;
        if let Some(since) = since {
            metrics::mailbox(events, since.elapsed());
        }
        Ok(())
    }

    /// Sends the ephemeral events that are for this socket.
    async fn write_ephemeral(
        &mut self,
        events: VecDeque<EphemeralEvent>,
        socket: &mut Socket,
    ) -> Result<(), SessionEnd> {
        for event in without_the_past(events) {
            let is_wanted = self.owns_frame(&event) && self.syncs.allow(&event);
            if is_wanted && !self.write_shared(socket, event.body).await? {
                break;
            }
        }
        self.flush(socket).await
    }

    /// Sends what a `stream.sync` asked for, and then what has come of the stream meanwhile.
    pub(super) async fn send_replay(
        &mut self,
        found: SyncAnswer,
        socket: &mut Socket,
    ) -> Result<(), SessionEnd> {
        let SyncAnswer {
            reference,
            stream,
            replay,
        } = found;
        let owner = Owner::Principal(self.client.principal.id());
        let held = replay.and_then(|replay| {
            let bytes = replay.frames.iter().map(|frame| frame.len()).sum();
            let permit = self.gateway.buffers.take(owner, bytes);
            permit
                .map(|permit| (replay, permit))
                .map_err(|_| Error::full())
        });
        match held {
            Ok((Replay { key, frames, next }, _permit)) => {
                self.syncs.record_sent(key, next);
                for frame in frames {
                    if !self.write_shared(socket, frame).await? {
                        break;
                    }
                }
                self.flush(socket).await?;
            }
            Err(error) => refuse(socket, &reference, Some(&stream), &error),
        }
        for event in self.syncs.take_held() {
            if self.syncs.allow(&event) && !self.write_shared(socket, event.body).await? {
                break;
            }
        }
        self.flush(socket).await
    }

    /// Whether events may be sent now. They may not if the access token has ended or the node is
    /// fenced; they stay in the inbox then.
    fn may_deliver(&mut self) -> bool {
        if self.has_expired() {
            self.expiry = Expiry::Expired;
            return false;
        }
        !self.gateway.hub.is_fenced()
    }

    /// Whether the access token has ended.
    pub(super) fn has_expired(&self) -> bool {
        let now = self.gateway.clock.now();
        self.client.expires_at.is_some_and(|at| now >= at)
    }

    /// Queues an event; false if nothing may be sent now.
    async fn write_event(
        &mut self,
        socket: &mut Socket,
        seq: i64,
        encoded: EncodedEvent,
    ) -> Result<bool, SessionEnd> {
        if !self.may_deliver() {
            return Ok(false);
        }
        socket.feed_event(self.cursor(seq), encoded);
        self.subscription.set_sent(seq);
        self.make_room(socket).await
    }

    /// Queues an ephemeral event; false if nothing may be sent now.
    async fn write_shared(
        &mut self,
        socket: &mut Socket,
        text: Arc<str>,
    ) -> Result<bool, SessionEnd> {
        if !self.may_deliver() {
            return Ok(false);
        }
        socket.feed_shared(text);
        self.make_room(socket).await
    }

    async fn make_room(&mut self, socket: &mut Socket) -> Result<bool, SessionEnd> {
        if socket.is_full() {
            self.flush(socket).await?;
        }
        Ok(true)
    }

    /// Writes the queue, unless the subscription ends first. A revocation takes effect in the
    /// middle of a backlog too.
    pub(super) async fn flush(&mut self, socket: &mut Socket) -> Result<(), SessionEnd> {
        if !self.subscription.is_ended() {
            tokio::select! {
                flushed = socket.flush() => return flushed.map_err(SessionEnd::from),
                () = self.subscription.ended() => {}
            }
        }
        let end = self
            .subscription
            .take()
            .end
            .unwrap_or(End::Drain(Duration::ZERO));
        socket.forget();
        Err(self.close_with(end, socket))
    }

    /// Reads the inbox until `head` has been sent, or Postgres is away.
    pub(super) async fn read_to(
        &mut self,
        head: i64,
        socket: &mut Socket,
    ) -> Result<(), SessionEnd> {
        let mut reorder_buffer = std::mem::take(&mut self.reorder_buffer);
        let mut reader = SocketReader(self, socket);
        let outcome = reorder_buffer.read_to(head, &mut reader).await;
        self.reorder_buffer = reorder_buffer;
        outcome
    }

    /// Answers the sends that wait, before a drain ends the session. Nothing more is read. A
    /// revocation ends it at once.
    async fn answer_waiting(&mut self, socket: &mut Socket) -> Result<(), SessionEnd> {
        let deadline = tokio::time::Instant::now() + ANSWER_TIMEOUT;
        while !self.commands.is_idle() {
            self.resume(socket);
            tokio::select! {
                answered = self.commands.answered() => answer(socket, &answered)?,
                refused = self.ephemeral_frames.next_finished() => Self::send_refusal(refused, socket),
                () = self.subscription.revoked() => break,
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        Ok(())
    }

    /// Tells the client that an ephemeral frame was refused.
    pub(super) fn send_refusal(refused: Option<RefusedFrame>, socket: &mut Socket) {
        if let Some(RefusedFrame {
            reference,
            stream,
            error,
        }) = refused
        {
            refuse(socket, &reference, stream.as_ref(), &error);
        }
    }

    /// Finishes the ephemeral frames of a client that has gone: others wait for the end of its
    /// typing or stream.
    pub(super) async fn finish_ephemeral_frames(&mut self) {
        while !self.ephemeral_frames.is_idle() {
            let subscription = self.subscription.subscription();
            self.ephemeral_frames
                .start_next(self.gateway, &self.client, &subscription);
            self.ephemeral_frames.next_finished().await;
        }
    }

    pub(super) fn close_with(&mut self, end: End, socket: &mut Socket) -> SessionEnd {
        let (frame, close) = close::last_frame(&self.client, end, self.gateway);
        socket.feed(&frame);
        close.into()
    }
}

/// The reader of a session's events: its client.
struct SocketReader<'s, 'a>(&'s mut Session<'a>, &'s mut Socket);

impl Reader for SocketReader<'_, '_> {
    type End = SessionEnd;

    fn sent(&self) -> i64 {
        self.0.subscription.sent()
    }

    fn has_expired(&self) -> bool {
        self.0.expiry == Expiry::Expired
    }

    async fn write(&mut self, seq: i64, encoded: EncodedEvent) -> Result<bool, SessionEnd> {
        self.0.write_event(self.1, seq, encoded).await
    }

    async fn flush(&mut self) -> Result<(), SessionEnd> {
        self.0.flush(self.1).await
    }

    async fn page(&mut self, after: i64) -> Result<Page, SessionEnd> {
        let Session {
            gateway, client, ..
        } = &*self.0;
        let principal = client.principal.id();
        // Without room for a page, small pages still keep the client going.
        let owner = Owner::Principal(principal);
        let mut permit = gateway.buffers.take(owner, SOCKET_PAGE_BYTES).ok();
        let bytes = permit.as_ref().map_or(FREE_SOCKET_BYTES, BytePermit::bytes);
        let page = gateway
            .inbox
            .read_page(principal, after, MAX_PAGE_EVENTS, bytes as i64);
        let page = match page.await {
            Ok(page) => page,
            Err(error) => {
                error.log_in("inbox.read", "the page is read again in some seconds");
                // Spread, because all sessions of a node may have failed together.
                let spread = MAX_READ_RETRY - MIN_READ_RETRY;
                let wait = MIN_READ_RETRY + spread.mul_f64(gateway.random.fraction());
                return Ok(Page::Away(wait));
            }
        };
        let held: usize = page.iter().map(|entry| entry.encoded.len()).sum();
        let fits = match &mut permit {
            Some(permit) => permit.grow(held.saturating_sub(bytes)).is_ok(),
            None => held <= 2 * FREE_SOCKET_BYTES,
        };
        match fits {
            true => Ok(Page::Entries(page, permit)),
            false => Err(Close::SlowConsumer.into()),
        }
    }
}
