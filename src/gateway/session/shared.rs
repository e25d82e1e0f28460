//! A shared socket: a member of a consumer group, which is given a part of the inbox.
//!
//! Hints only hasten the next step; [`groups::step`] alone says what the client is given. The socket
//! steps once a second anyway, which renews its lease and finds what other sockets gave up.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Deserialize;

use super::{Session, overload};
use crate::{
    cursor::Cursor,
    delivery::EphemeralEvent,
    gateway::{
        authenticate::AuthenticatedClient,
        close::{Close, SessionEnd},
        frames::ClientFrame,
        socket::{Incoming, Socket},
    },
    ids::{ConnectionId, ConversationId},
    inbox::{
        Bounds,
        groups::{self, Member},
    },
    limits::{
        buffers::Owner,
        quotas::{
            GROUP_ACK_INTERVAL, GROUP_LEASE, GROUP_STEP_INTERVAL, MAX_GIVEN_EVENTS,
            MAX_PAGE_EVENTS, SOCKET_PAGE_BYTES,
        },
    },
};

/// Longest wait for acks that were under way when a socket ended.
const LAST_ACKS_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest wait for the group's row at a socket's end. After that its last acks are lost, and what
/// they finished is given again.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The place of a shared socket in its group.
pub struct SharedSocket {
    pub member: Member,
    /// The live sockets of the group, as of the last step.
    owners: Vec<ConnectionId>,
    /// Acked numbers for the next step, in the order of their frames.
    acks: Vec<i64>,
    /// When the next step is due.
    pub due_at: DateTime<Utc>,
    /// The end of the lease, by a clock that nobody sets.
    leased_until: Instant,
    /// The place of the last event that the client was given.
    place: i64,
    /// The highest number that the client was given.
    highest: i64,
}

impl SharedSocket {
    /// A place whose first step is due now. The lease began after `asked_at`.
    pub fn new(member: Member, acked: i64, now: DateTime<Utc>, asked_at: Instant) -> Self {
        SharedSocket {
            member,
            owners: Vec::new(),
            acks: Vec::new(),
            due_at: now,
            leased_until: asked_at + GROUP_LEASE,
            place: 0,
            highest: acked,
        }
    }
}

/// The conversation of an ephemeral frame.
#[derive(Deserialize)]
struct OfConversation {
    conversation_id: ConversationId,
}

impl Session<'_> {
    /// Whether a step of a shared socket is due.
    pub(super) fn step_is_due(&self) -> bool {
        let due_at = self.client.shared.as_ref().map(|shared| shared.due_at);
        due_at.is_some_and(|due_at| due_at <= self.gateway.clock.now())
    }

    /// The number up to which the access log counts the events of this socket as read.
    pub(super) fn delivered(&self) -> i64 {
        let shared = self.client.shared.as_ref();
        shared.map_or(self.subscription.sent(), |shared| shared.highest)
    }

    /// Notes an ack of a shared socket, which the next step writes.
    pub(super) fn note_shared_ack(&mut self, cursor: Cursor) {
        let soon = self.gateway.clock.now() + GROUP_ACK_INTERVAL;
        if let Some(shared) = &mut self.client.shared
            && cursor.epoch == self.epoch
            && shared.acks.len() < MAX_GIVEN_EVENTS as usize
        {
            shared.acks.push(cursor.seq);
            shared.due_at = shared.due_at.min(soon);
        }
    }

    /// Whether a shared socket owns the conversation of an ephemeral frame. Every other socket gets
    /// all frames.
    pub(super) fn owns_frame(&self, event: &EphemeralEvent) -> bool {
        let Some(shared) = &self.client.shared else {
            return true;
        };
        let found = serde_json::from_str::<OfConversation>(&event.body);
        found.is_ok_and(|frame| {
            let owner = groups::owner(frame.conversation_id, &shared.owners);
            owner == Some(shared.member.connection)
        })
    }

    /// Steps until the group has nothing more for this socket.
    pub(super) async fn step(&mut self, socket: &mut Socket) -> Result<(), SessionEnd> {
        loop {
            let now = self.gateway.clock.now();
            let asked_at = Instant::now();
            let Some(shared) = &mut self.client.shared else {
                return Ok(());
            };
            shared.due_at = now + GROUP_STEP_INTERVAL;
            let step = groups::step(&self.gateway.db, &shared.member, &shared.acks, shared.place);
            let step = match step.await {
                Ok(Some(step)) => step,
                // Others may be given what this socket was given.
                Ok(None) => return Err(Close::Overload.into()),
                Err(error) if Instant::now() < shared.leased_until => {
                    error.log_in("inbox.step_group", "the next step is in a second");
                    return Ok(());
                }
                Err(error) => return Err(overload("inbox.step_group", &error).into()),
            };
            let had_acks = !shared.acks.is_empty();
            shared.acks.clear();
            shared.place = step.place;
            shared.leased_until = asked_at + GROUP_LEASE;
            shared.owners = step.owners;
            // The sweep for lost hints compares heads with what the socket has seen.
            self.subscription.set_sent(step.head);
            if had_acks {
                self.note_reachable();
            }
            let is_last = step.given.len() < MAX_PAGE_EVENTS as usize;
            self.write_given(&step.given, socket).await?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Writes chosen events, unless the lease has ended meanwhile.
    async fn write_given(&mut self, given: &[i64], socket: &mut Socket) -> Result<(), SessionEnd> {
        let principal = self.client.principal.id();
        let mut written = 0;
        while let Some(next) = given.get(written) {
            let owner = Owner::Principal(principal);
            let Ok(mut permit) = self.gateway.buffers.take(owner, SOCKET_PAGE_BYTES) else {
                return Err(Close::Overload.into());
            };
            let page = self
                .gateway
                .inbox
                .read_page(
                    principal,
                    next - 1,
                    MAX_PAGE_EVENTS,
                    SOCKET_PAGE_BYTES as i64,
                )
                .await
                .map_err(|error| overload("inbox.read", &error))?;
            let held: usize = page.iter().map(|entry| entry.encoded.len()).sum();
            if permit.grow(held.saturating_sub(SOCKET_PAGE_BYTES)).is_err() {
                return Err(Close::SlowConsumer.into());
            }
            let before = written;
            for entry in page {
                if given.get(written) != Some(&entry.seq) {
                    continue;
                }
                let shared = self.client.shared.as_mut();
                let Some(shared) = shared.filter(|shared| Instant::now() < shared.leased_until)
                else {
                    return Err(Close::Overload.into());
                };
                shared.highest = shared.highest.max(entry.seq);
                if self.gateway.hub.is_fenced() {
                    return Err(Close::Overload.into());
                }
                socket.feed_event(self.cursor(entry.seq), entry.encoded);
                written += 1;
                if socket.is_full() {
                    self.flush(socket).await?;
                }
            }
            if written == before {
                // The event went by age between the two reads.
                return Err(Close::Overload.into());
            }
            self.flush(socket).await?;
        }
        Ok(())
    }

    /// Gives the place in the group back. Acks that the node has received count, unless the
    /// credential was revoked. A write may have failed before they were read.
    pub(super) async fn leave_group(&mut self, why: SessionEnd, socket: &mut Socket) {
        if self.client.shared.is_none() {
            return;
        }
        let counts_acks = why != SessionEnd::Close(Close::Revoked);
        if counts_acks {
            let last = self.receive_last_acks(socket);
            tokio::time::timeout(LAST_ACKS_TIMEOUT, last).await.ok();
        }
        let Some(shared) = &mut self.client.shared else {
            return;
        };
        if !counts_acks {
            shared.acks.clear();
        }
        let leave = groups::leave(&self.gateway.db, &shared.member, &shared.acks);
        if let Ok(Err(error)) = tokio::time::timeout(LEAVE_TIMEOUT, leave).await {
            error.log_in("inbox.leave_group", "the lease ends in 10 s");
        }
    }

    /// Notes the acks among what the client sends until it has gone. Other frames get no answer.
    async fn receive_last_acks(&mut self, socket: &mut Socket) {
        loop {
            match socket.receive().await {
                Incoming::Text(text) => {
                    if let Ok(ClientFrame::Ack(cursor)) = ClientFrame::read(text) {
                        self.note_shared_ack(cursor);
                    }
                }
                Incoming::Binary(_) | Incoming::Alive => {}
                Incoming::Gone | Incoming::Fault(_) => return,
            }
        }
    }
}

/// The bounds as a shared socket sees them: its group's ack is the position, and the client's cursor
/// counts for nothing.
pub(super) fn bounds_of(client: &AuthenticatedClient, bounds: Bounds) -> Bounds {
    match &client.shared {
        Some(shared) => Bounds {
            acked: shared.highest.max(bounds.oldest - 1),
            ..bounds
        },
        None => bounds,
    }
}
