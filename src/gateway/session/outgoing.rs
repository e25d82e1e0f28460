//! The outgoing side of a session: events in their order, and ephemeral events between them.

use std::{sync::Arc, time::Duration};

use super::{Expiry, Session};
use crate::{
    delivery::End,
    events::EncodedEvent,
    features::streams::{Found, ReplayChunk, without_the_past},
    gateway::{close::SessionEnd, close_frame, sends::refuse, socket::Socket},
    limits::quotas::MAX_PAGE_EVENTS,
};

impl Session<'_> {
    /// Sends the events in the mailbox, and reads the missing ones from the inbox.
    pub(super) async fn deliver(&mut self, socket: &mut Socket) -> Result<(), SessionEnd> {
        let mail = self.subscription.take();
        if let Some(end) = mail.end {
            return Err(self.close_with(end, socket).await);
        }
        if self.expiry == Expiry::Expired {
            // The inbox keeps the events. The session reads them when the token is renewed.
            self.reorder_buffer.clear();
            return Ok(());
        }
        mail.items
            .into_iter()
            .for_each(|item| self.reorder_buffer.hold(item));
        while let Some(encoded) = self.reorder_buffer.next(self.subscription.sent()) {
            let seq = self.subscription.sent() + 1;
            match encoded {
                None => Box::pin(self.read_to(seq, socket)).await?,
                Some(encoded) => {
                    if !self.write_event(socket, seq, encoded).await? {
                        break;
                    }
                }
            }
        }
        // An ephemeral event must follow the events before it, so a gap before it is read at once.
        let behind = mail.head > self.subscription.sent() && self.expiry != Expiry::Expired;
        if !behind || !mail.ephemeral.is_empty() || !self.reorder_buffer.wait() {
            self.reorder_buffer.clear();
            if behind {
                Box::pin(self.read_to(mail.head, socket)).await?;
            }
        }
        for event in without_the_past(mail.ephemeral) {
            if self.syncs.allow(&event) && !self.write_shared(socket, event.body).await? {
                break;
            }
        }
        self.flush(socket).await
    }

    /// Sends the deltas that a `stream.sync` asked for. Live deltas follow them.
    pub(super) async fn send_replay(
        &mut self,
        found: Found,
        socket: &mut Socket,
    ) -> Result<(), SessionEnd> {
        let Found {
            reference,
            stream,
            from,
            key,
        } = found;
        let key = match key {
            Ok(key) => key,
            Err(error) => return refuse(socket, &reference, Some(&stream), &error).await,
        };
        let ReplayChunk { frames, next } = self.gateway.streams.replay(&key, from);
        self.syncs.record_sent(key, next);
        for frame in frames {
            if !self.write_shared(socket, frame).await? {
                break;
            }
        }
        self.flush(socket).await
    }

    /// Whether events may be sent now. They may not if the access token has ended or the node is
    /// fenced; they stay in the inbox then.
    fn may_deliver(&mut self) -> bool {
        if self
            .client
            .expires_at
            .is_some_and(|at| self.gateway.clock.now() >= at)
        {
            self.expiry = Expiry::Expired;
            return false;
        }
        !self.gateway.hub.is_fenced()
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
        Err(self.close_with(end, socket).await)
    }

    /// Reads the inbox until `head` has been sent, or Postgres is away.
    pub(super) async fn read_to(
        &mut self,
        head: i64,
        socket: &mut Socket,
    ) -> Result<(), SessionEnd> {
        let principal = self.client.principal.id();
        while self.subscription.sent() < head {
            let page = match self
                .gateway
                .inbox
                .read(principal, self.subscription.sent(), MAX_PAGE_EVENTS)
                .await
            {
                Ok(page) => page,
                Err(error) => {
                    // The next sweep that reaches Postgres finds this session behind.
                    error.log();
                    return Ok(());
                }
            };
            if page.is_empty() {
                return Ok(());
            }
            for entry in page {
                if !self.write_event(socket, entry.seq, entry.encoded).await? {
                    return Ok(());
                }
            }
            self.flush(socket).await?;
        }
        Ok(())
    }

    pub(super) async fn close_with(&mut self, end: End, socket: &mut Socket) -> SessionEnd {
        let (frame, close) = close_frame::to(&self.client, end, self.gateway);
        socket.say(frame).await.err().unwrap_or(close).into()
    }
}
