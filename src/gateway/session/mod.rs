//! An authenticated socket: a cursor over an inbox, moved by hints and by reading.
//!
//! An event that came with its hint is sent at once if it is the next. A late hint closes a gap,
//! and otherwise a read of the inbox does. The numbers that the client gets therefore rise by 1
//! each time, whatever was lost on the way.

mod incoming;
mod outgoing;
mod shared;

use std::time::Duration;

pub use self::shared::SharedSocket;

use blindpipe_protocol::frames::{CaughtUp, Empty, Ready, Replay, ResyncRequired};
use chrono::{DateTime, Utc};

use super::{
    Gateway,
    authenticate::{self, AuthenticatedClient},
    close::{Close, SessionEnd},
    commands::{CommandQueue, answer},
    ephemeral_frames::EphemeralFrames,
    frames::{self, AuthErrorReason, ServerFrame},
    rate::Rate,
    reorder_buffer::ReorderBuffer,
    socket::Socket,
};
use crate::auth::Reverify;
use crate::{
    cursor::Cursor,
    delivery::{End, Subscription, SubscriptionGuard, subscription::UNKNOWN_SEQ},
    error::{Code, Error, Result},
    features::streams::StreamSyncs,
    ids::Principal,
    inbox::{Bounds, Start},
    limits::{
        quotas::{EXPIRY_GRACE, EXPIRY_NOTICE, HEARTBEAT_INTERVAL, PONG_DEADLINE},
        unauthenticated::UnauthenticatedConnection,
    },
    metrics,
};

/// Longest wait for the ephemeral frames and acks of a socket that closes.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a socket from its upgrade to its end. State that only a busy socket needs is boxed,
/// because most sockets are idle.
pub async fn run(
    gateway: &Gateway,
    socket: &mut Socket,
    unauthenticated: UnauthenticatedConnection,
) -> SessionEnd {
    match Box::pin(open(gateway, socket, unauthenticated)).await {
        Ok(mut session) => {
            let why = session.serve(socket).await;
            session.note_delivered();
            // A client that acks, closes and reconnects elsewhere gets nothing twice. A revoked
            // credential is closed without a wait.
            Box::pin(session.leave_group(why, socket)).await;
            if why != SessionEnd::Close(Close::Revoked) {
                // A future is as large as its largest moment, and this is a socket's last second.
                let last = Box::pin(async {
                    tokio::join!(
                        session.finish_ephemeral_frames(),
                        gateway.acks.flush(&gateway.db)
                    )
                });
                tokio::time::timeout(LAST_WORD_TIMEOUT, last).await.ok();
            }
            why
        }
        Err(why) => why,
    }
}

/// Authenticates the client and replays the events that it missed.
async fn open<'a>(
    gateway: &'a Gateway,
    socket: &mut Socket,
    unauthenticated: UnauthenticatedConnection,
) -> Result<Box<Session<'a>>, SessionEnd> {
    let client = authenticate::receive(gateway, socket, unauthenticated.ip()).await?;
    drop(unauthenticated);
    Session::start(gateway, client, socket).await.map(Box::new)
}

/// An entry in the count of authenticated sockets, released on drop.
struct SocketCount(&'static str);

impl SocketCount {
    fn new(kind: &'static str) -> Self {
        metrics::socket_opened(kind);
        SocketCount(kind)
    }
}

impl Drop for SocketCount {
    fn drop(&mut self) {
        metrics::socket_gone(self.0);
    }
}

struct Session<'a> {
    gateway: &'a Gateway,
    client: AuthenticatedClient,
    /// The epoch of every cursor that this socket is sent: numbers of two epochs never mix.
    epoch: u64,
    subscription: SubscriptionGuard,
    reorder_buffer: ReorderBuffer,
    commands: CommandQueue,
    ephemeral_frames: EphemeralFrames,
    syncs: StreamSyncs,
    /// Whether a ping is unanswered.
    pinged: bool,
    /// The time at which the next ping is due, or the pong is overdue.
    heartbeat_at: DateTime<Utc>,
    expiry: Expiry,
    frames: Rate,
    acks: Rate,
    deltas: Rate,
    #[expect(dead_code, reason = "held, not read")]
    counted: SocketCount,
}

/// The nearness of the access token's end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    /// The end is far away, or there is none.
    Fresh,
    /// `auth.expiring` was sent.
    Noticed,
    /// The token has ended: no events until it is renewed.
    Expired,
}

/// Checks the client's credential again.
async fn reverify(client: &AuthenticatedClient) -> Result<(), Close> {
    let verified = client.verified.reverify().await;
    verified.map_err(|error| match error.code() {
        Code::Unauthorized | Code::AgentTokenInvalid => Close::Revoked,
        _ => overload("gateway.reverify", &error),
    })
}

/// Logs why a session cannot begin. The client may try again at once.
fn overload(operation: &'static str, error: &Error) -> Close {
    error.log_in(operation, "the socket closes and its client reconnects");
    Close::Overload
}

/// Queues `ready`, and `resync_required` if the client's cursor is no longer good. Returns the
/// number after which reading starts.
fn send_ready(client: &AuthenticatedClient, bounds: &Bounds, socket: &mut Socket) -> i64 {
    let start = bounds.start(client.resume);
    let from = match start {
        Start::After(seq) => seq,
        Start::Resync => bounds.head,
    };
    let missed = (bounds.head - from).max(0);
    let outcome = match start {
        Start::Resync => "resync",
        Start::After(_) if client.resume.is_none() => "fresh",
        Start::After(_) if missed == 0 => "current",
        Start::After(_) => "replayed",
    };
    metrics::resumed(outcome, missed);
    let ready = ServerFrame::Ready(Ready {
        connection_id: client.lease.id,
        cursor: bounds.cursor(from),
        heartbeat_interval_ms: frames::heartbeat_ms(),
        token_expires_at: client.expires_at.map(Into::into),
        replay: Replay {
            from,
            to: bounds.head,
        },
    });
    socket.feed(&frames::encode(&ready));
    if let Start::Resync = start {
        let oldest = bounds.cursor(bounds.oldest - 1);
        let head = bounds.cursor(bounds.head);
        socket.feed(&frames::encode(&ServerFrame::ResyncRequired(
            ResyncRequired { oldest, head },
        )));
    }
    from
}

impl<'a> Session<'a> {
    /// Joins the hub, sends `ready` and replays the events that the client missed.
    async fn start(
        gateway: &'a Gateway,
        client: AuthenticatedClient,
        socket: &mut Socket,
    ) -> Result<Session<'a>, SessionEnd> {
        let counted = SocketCount::new(client.principal.kind().as_str());
        // Before the bounds are read: every later commit wakes this subscription.
        let subscription = gateway.hub.join(
            Subscription::new(client.principal.id(), client.credential.id(), UNKNOWN_SEQ)
                .with_ephemeral()
                .with_buffers(gateway.buffers.clone()),
        );
        let ended = subscription.subscription();
        client.lease.on_lost(move || ended.end(End::TooMany));
        // A revocation between the authentication and the subscription reached no subscription.
        let (inbox, credential) = (&gateway.inbox, client.credential);
        let bounds = inbox.bounds_by(&client.reader, credential).await;
        let Some(bounds) = bounds.map_err(|error| overload("inbox.bounds", &error))? else {
            // It refuses the credential, and remembers that.
            reverify(&client).await?;
            return Err(Close::Overload.into());
        };
        let bounds = shared::bounds_of(&client, bounds);
        let from = send_ready(&client, &bounds, socket);
        subscription.set_start(bounds.cursor(from));
        let mut session = Session {
            gateway,
            client,
            epoch: bounds.epoch,
            subscription,
            reorder_buffer: ReorderBuffer::default(),
            commands: CommandQueue::default(),
            ephemeral_frames: EphemeralFrames::default(),
            syncs: StreamSyncs::default(),
            pinged: false,
            heartbeat_at: gateway.clock.now() + HEARTBEAT_INTERVAL,
            expiry: Expiry::Fresh,
            frames: Rate::default(),
            acks: Rate::default(),
            deltas: Rate::default(),
            counted,
        };
        match session.catch_up(bounds.head, socket).await {
            Ok(()) => Ok(session),
            Err(end) => {
                session.leave_group(end, socket).await;
                Err(end)
            }
        }
    }

    /// Replays the events up to `head`, and says so.
    async fn catch_up(&mut self, head: i64, socket: &mut Socket) -> Result<(), SessionEnd> {
        if self.client.shared.is_some() {
            self.step(socket).await?;
        } else {
            self.read_to(head, socket).await?;
        }
        if self.expiry == Expiry::Expired {
            return Ok(());
        }
        if self.subscription.sent() < head {
            // Postgres went away in the middle. A reconnection is better than a false `CaughtUp`.
            return Err(Close::Overload.into());
        }
        let cursor = self.cursor(self.subscription.sent());
        socket.feed(&frames::encode(&ServerFrame::CaughtUp(CaughtUp { cursor })));
        self.flush(socket).await
    }

    /// Notes what an agent was sent, for the access log.
    fn note_delivered(&self) {
        if let Principal::Agent(agent) = self.client.principal {
            let cursor = self.cursor(self.delivered());
            self.gateway.acks.note_delivered(agent, cursor);
        }
    }

    fn cursor(&self, seq: i64) -> Cursor {
        Cursor {
            epoch: self.epoch,
            seq,
        }
    }

    /// Serves until the session is over.
    async fn serve(&mut self, socket: &mut Socket) -> SessionEnd {
        let mut due = self.due();
        let mut timer = Box::pin(self.gateway.clock.sleep_until(due));
        loop {
            let mut fired = false;
            let outcome = tokio::select! {
                incoming = socket.receive(), if self.is_reading() => {
                    Box::pin(self.handle_incoming(incoming, socket)).await
                }
                () = self.subscription.notified() => Box::pin(self.deliver(socket)).await,
                () = self.reorder_buffer.overdue() => Box::pin(self.deliver(socket)).await,
                answered = self.commands.answered() => answer(socket, &answered),
                refused = self.ephemeral_frames.next_finished() => {
                    Self::send_refusal(refused, socket);
                    Ok(())
                }
                found = self.syncs.found() => Box::pin(self.send_replay(found, socket)).await,
                () = &mut timer => {
                    fired = true;
                    match self.tick(socket) {
                        Ok(()) if self.step_is_due() => Box::pin(self.step(socket)).await,
                        outcome => outcome,
                    }
                }
            };
            let outcome = match outcome {
                // A revocation takes effect in the middle of every write.
                Ok(()) if socket.has_queue() => Box::pin(self.flush(socket)).await,
                outcome => outcome,
            };
            if let Err(why) = outcome {
                return why;
            }
            self.resume(socket);
            self.syncs
                .start_next(&self.gateway.streams, self.client.principal);
            let next = self.due();
            // A timer that has fired must be replaced, even if the clock was set back and nothing
            // was due.
            if fired || next != due {
                due = next;
                timer.set(self.gateway.clock.sleep_until(due));
            }
        }
    }

    /// Starts the next ephemeral frames and the next command, which waits for the ephemeral frames
    /// before it.
    fn resume(&mut self, socket: &mut Socket) {
        loop {
            let subscription = self.subscription.subscription();
            self.ephemeral_frames
                .start_next(self.gateway, &self.client, &subscription);
            // Most ephemeral frames wait for nothing.
            let Some(refused) = self.ephemeral_frames.finished_now() else {
                break;
            };
            Self::send_refusal(refused, socket);
        }
        self.commands
            .start_next(self.gateway, &self.client, self.ephemeral_frames.finished());
    }

    /// Whether frames of the client are read now.
    fn is_reading(&self) -> bool {
        self.commands.has_room() && self.ephemeral_frames.has_room() && self.syncs.has_room()
    }

    /// The next moment at which a timer is due.
    fn due(&self) -> DateTime<Utc> {
        let expiry = self.client.expires_at.map(|at| match self.expiry {
            Expiry::Fresh => at - EXPIRY_NOTICE,
            Expiry::Noticed => at,
            Expiry::Expired => at + EXPIRY_GRACE,
        });
        let step = self.client.shared.as_ref().map(|shared| shared.due_at);
        let others = [expiry, step].into_iter().flatten();
        others.fold(self.heartbeat_at, DateTime::min)
    }

    fn tick(&mut self, socket: &mut Socket) -> Result<(), SessionEnd> {
        let now = self.gateway.clock.now();
        if let Some(at) = self.client.expires_at {
            if now >= at + EXPIRY_GRACE {
                socket.feed(&frames::auth_error(AuthErrorReason::TokenExpired));
                return Err(Close::AuthFailed.into());
            }
            if now >= at {
                self.expiry = Expiry::Expired;
            } else if now >= at - EXPIRY_NOTICE && self.expiry == Expiry::Fresh {
                self.expiry = Expiry::Noticed;
                socket.feed(&frames::encode(&ServerFrame::AuthExpiring(Empty {})));
            }
        }
        if now >= self.heartbeat_at {
            if !self.is_reading() {
                // Its pong may wait behind the frames that are not read yet.
                self.heartbeat_at = now + PONG_DEADLINE;
                return Ok(());
            }
            if self.pinged {
                return Err(SessionEnd::Silent);
            }
            self.note_delivered();
            self.pinged = true;
            self.heartbeat_at = now + PONG_DEADLINE;
            socket.feed_ping();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<'a, F>(
        _: impl FnOnce(&'a Gateway, &'a mut Socket, UnauthenticatedConnection) -> F,
    ) -> usize {
        size_of::<F>()
    }

    /// An idle socket costs little more than these two, and a node has tens of thousands.
    #[test]
    fn an_idle_socket_is_small() {
        let future = size_of_future(run);
        assert!(future <= 1_000, "the future of a session: {future} bytes");
        let session = size_of::<Session<'_>>();
        assert!(session <= 880, "a session: {session} bytes");
    }
}
