//! An authenticated socket: a cursor over an inbox, moved by hints and by reading.
//!
//! An event that came with its hint is sent at once if it is the next. A late hint closes a gap,
//! and otherwise a read of the inbox does. The numbers that the client gets therefore rise by 1
//! each time, whatever was lost on the way.

mod telling;

use std::time::Duration;

use blindpipe_protocol::frames::{AuthRenewed, CaughtUp, Empty, Ready, Replay, ResyncRequired};
use chrono::{DateTime, Utc};

use super::{
    Gateway,
    authenticate::{self, AuthenticatedClient},
    close::Close,
    frames::{self, AuthErrorReason, ClientFrame, ServerFrame},
    rate::Rate,
    reorder_buffer::ReorderBuffer,
    sends::{Sends, Target, answer, refuse},
    socket::{Heard, Socket},
};
use crate::{
    auth::user::UserToken,
    cursor::Cursor,
    delivery::{End, Subscription, SubscriptionGuard, subscription::UNKNOWN_SEQ},
    error::{Code, Result},
    features::streams::{StreamCommand, StreamReplays},
    ids::Principal,
    inbox::Start,
    limits::{
        Limiter,
        quotas::{
            EXPIRY_GRACE, EXPIRY_NOTICE, HEARTBEAT_INTERVAL, MAX_ACKS_PER_SECOND,
            MAX_DELTAS_PER_SECOND, MAX_FRAMES_PER_SECOND, PONG_DEADLINE,
        },
        unauthenticated::UnauthenticatedConnection,
    },
    metrics,
    validation::Reverify,
};

/// Longest wait for the acks of a socket that closes.
const LAST_ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a socket from its upgrade until it must be closed (and with what) or has gone (`None`). What is needed only before
/// it is idle is boxed, because sockets mostly are.
pub async fn run(
    gateway: &Gateway,
    socket: &mut Socket,
    stranger: UnauthenticatedConnection,
) -> Option<Close> {
    match Box::pin(open(gateway, socket, stranger)).await {
        Ok(mut session) => {
            let why = session.serve(socket).await;
            // A client that acks, closes and comes back elsewhere is not told again.
            let acks = &session.gateway.acks;
            tokio::time::timeout(LAST_ACK_TIMEOUT, acks.flush(&session.gateway.db))
                .await
                .ok();
            why
        }
        Err(why) => why,
    }
}

/// Authenticates the client and replays the events that it missed.
async fn open<'a>(
    gateway: &'a Gateway,
    socket: &mut Socket,
    stranger: UnauthenticatedConnection,
) -> Result<Box<Session<'a>>, Option<Close>> {
    let client = authenticate::receive(gateway, socket).await?;
    drop(stranger);
    Session::start(gateway, client, socket).await.map(Box::new)
}

/// An entry in the count of authenticated sockets, released on drop.
struct Counted(&'static str);

impl Counted {
    fn new(kind: &'static str) -> Self {
        metrics::socket_opened(kind);
        Counted(kind)
    }
}

impl Drop for Counted {
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
    sends: Sends,
    syncs: StreamReplays,
    /// Whether a ping is unanswered.
    pinged: bool,
    /// The time at which the next ping is due, or the pong is overdue.
    beat_at: DateTime<Utc>,
    expiry: Expiry,
    frames: Rate,
    acks: Rate,
    deltas: Rate,
    #[expect(dead_code, reason = "held, not read")]
    counted: Counted,
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

impl<'a> Session<'a> {
    /// Joins the hub, sends `ready` and replays the events that the client missed.
    async fn start(
        gateway: &'a Gateway,
        client: AuthenticatedClient,
        socket: &mut Socket,
    ) -> Result<Session<'a>, Option<Close>> {
        let counted = Counted::new(client.principal.kind().as_str());
        // Before the bounds are read: what is committed from now on rings this seat.
        let subscription = gateway.hub.join(
            Subscription::new(client.principal.id(), client.credential, UNKNOWN_SEQ)
                .with_ephemeral(),
        );
        let ended = subscription.subscription();
        client.lease.on_lost(move || ended.end(End::TooMany));
        // A revocation between the authentication and the subscription reached no subscription.
        client
            .proven
            .reverify()
            .await
            .map_err(|error| match error.code() {
                Code::Unauthorized | Code::AgentTokenInvalid => Some(Close::Revoked),
                _ => {
                    error.log();
                    Some(Close::Overload)
                }
            })?;
        let bounds = gateway
            .inbox
            .bounds(&client.reader)
            .await
            .map_err(|error| {
                error.log();
                Some(Close::Overload)
            })?;
        let start = bounds.start(client.resume);
        let from = match start {
            Start::After(seq) => seq,
            Start::Resync => bounds.head,
        };
        subscription.set_start(bounds.cursor(from));
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
        let mut session = Session {
            gateway,
            client,
            epoch: bounds.epoch,
            subscription,
            reorder_buffer: ReorderBuffer::default(),
            sends: Sends::default(),
            syncs: StreamReplays::default(),
            pinged: false,
            beat_at: gateway.clock.now() + HEARTBEAT_INTERVAL,
            expiry: Expiry::Fresh,
            frames: Rate::default(),
            acks: Rate::default(),
            deltas: Rate::default(),
            counted,
        };
        session.read_to(bounds.head, socket).await?;
        if session.expiry == Expiry::Expired {
            return Ok(session);
        }
        if session.subscription.sent() < bounds.head {
            // Postgres went away in the middle. A reconnection is better than a false `CaughtUp`.
            return Err(Some(Close::Overload));
        }
        let cursor = session.cursor(session.subscription.sent());
        socket
            .say(frames::encode(&ServerFrame::CaughtUp(CaughtUp { cursor })))
            .await?;
        Ok(session)
    }

    fn cursor(&self, seq: i64) -> Cursor {
        Cursor {
            epoch: self.epoch,
            seq,
        }
    }

    /// Serves until the socket must be closed (and with what) or has gone (`None`).
    async fn serve(&mut self, socket: &mut Socket) -> Option<Close> {
        let mut due = self.due();
        let mut timer = Box::pin(self.gateway.clock.sleep_until(due));
        loop {
            let mut fired = false;
            let outcome = tokio::select! {
                heard = socket.hear(), if self.sends.has_room() && self.syncs.has_room() => {
                    Box::pin(self.heard(heard, socket)).await
                }
                () = self.subscription.notified() => self.deliver(socket).await,
                () = self.reorder_buffer.overdue() => self.deliver(socket).await,
                answered = self.sends.answered() => answer(socket, &answered).await,
                found = self.syncs.found() => Box::pin(self.tell_again(found, socket)).await,
                () = &mut timer => {
                    fired = true;
                    self.tick(socket).await
                }
            };
            if let Err(why) = outcome {
                return why;
            }
            self.sends.start_next(self.gateway, &self.client);
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

    async fn heard(&mut self, heard: Heard, socket: &mut Socket) -> Result<(), Option<Close>> {
        self.pinged = false;
        self.beat_at = self.gateway.clock.now() + HEARTBEAT_INTERVAL;
        let text = match heard {
            Heard::Text(text) => text,
            Heard::Binary(_) => return Err(Some(Close::Unsupported)),
            Heard::Alive if self.frames.over(MAX_FRAMES_PER_SECOND) => {
                return Err(Some(Close::Flood));
            }
            Heard::Alive => return Ok(()),
            Heard::Gone => return Err(None),
            Heard::Fault(close) => return Err(Some(close)),
        };
        let frame = ClientFrame::read(text);
        // A client may ack a whole backlog event by event. Acks are gathered and cost little.
        let flood = match frame {
            Ok(ClientFrame::Ack(_)) => self.acks.over(MAX_ACKS_PER_SECOND),
            // Deltas have a budget of their own.
            Ok(ClientFrame::Stream {
                action: StreamCommand::Delta { .. },
                ..
            }) => self.deltas.over(MAX_DELTAS_PER_SECOND),
            _ => self.frames.over(MAX_FRAMES_PER_SECOND),
        };
        match frame {
            _ if flood => Err(Some(Close::Flood)),
            Ok(frame) => self.handle(frame, socket).await,
            Err(_) => Err(Some(Close::BadFrame)),
        }
    }

    async fn handle(
        &mut self,
        frame: ClientFrame,
        socket: &mut Socket,
    ) -> Result<(), Option<Close>> {
        match frame {
            ClientFrame::Ping => {
                let pong = frames::encode(&ServerFrame::Pong(Empty {}));
                socket.say(pong).await?;
            }
            ClientFrame::Ack(cursor) => self.ack(cursor),
            ClientFrame::Renew(token) => self.renew(&token, socket).await?,
            ClientFrame::Send {
                reference,
                conversation,
                body,
            } => {
                self.sends
                    .push(reference, Target::Conversation(conversation), body);
            }
            ClientFrame::StreamEnd {
                reference,
                stream,
                conversation,
                body,
            } => {
                self.sends
                    .push(reference, Target::Stream(stream, conversation), body);
            }
            ClientFrame::StreamSync {
                reference,
                stream,
                from,
            } => {
                self.syncs.push(reference, stream, from);
            }
            ClientFrame::Typing {
                reference,
                conversation,
                state,
            } => {
                let AuthenticatedClient {
                    principal, reader, ..
                } = &self.client;
                let limiter = Limiter::detached(self.gateway.limits.clone());
                let typed = self.gateway.typing.frame(
                    &limiter,
                    *principal,
                    &reader.device_id,
                    conversation,
                    state,
                    &self.subscription,
                );
                if let Err(error) = typed.await {
                    refuse(socket, &reference, None, &error).await?;
                }
            }
            ClientFrame::Stream {
                reference,
                stream,
                action,
            } => {
                let who = self.client.principal;
                let done = self
                    .gateway
                    .streams
                    .frame(who, stream.clone(), action)
                    .await;
                if let Err(error) = done {
                    refuse(socket, &reference, Some(&stream), &error).await?;
                }
            }
        }
        Ok(())
    }

    /// Notes a durable ack. An ack of another epoch says nothing about this one.
    fn ack(&self, cursor: Cursor) {
        if cursor.epoch == self.epoch {
            let seq = cursor.seq.min(self.subscription.sent());
            self.gateway.acks.note(
                &self.client.reader,
                Cursor {
                    epoch: cursor.epoch,
                    seq,
                },
            );
            if let Principal::Agent(agent) = self.client.principal {
                self.gateway.reachability.note(agent);
            }
        }
    }

    /// A token of the same user and session goes on; any other ends the socket.
    async fn renew(&mut self, token: &str, socket: &mut Socket) -> Result<(), Option<Close>> {
        let claim = UserToken::from_token(&self.gateway.access_tokens, token);
        let same = claim.ok().filter(|claim| {
            Principal::User(claim.user) == self.client.principal
                && claim.session.0 == self.client.credential
        });
        let proven = match same {
            Some(claim) => {
                let proven = claim
                    .verify(&self.gateway.db, &self.gateway.access_tokens.dead)
                    .await;
                proven.map(|_| claim.expires_at)
            }
            None => Err(Code::Unauthorized.into()),
        };
        match proven {
            Ok(expires_at) => {
                self.client.expires_at = Some(expires_at);
                let waited = self.expiry == Expiry::Expired;
                self.expiry = Expiry::Fresh;
                socket
                    .say(frames::encode(&ServerFrame::AuthRenewed(AuthRenewed {
                        expires_at: expires_at.into(),
                    })))
                    .await?;
                if waited {
                    // The mailbox was emptied meanwhile, but it still has its head.
                    let head = self.subscription.take().head;
                    Box::pin(self.read_to(head, socket)).await?;
                }
                Ok(())
            }
            Err(error) if error.code() == Code::ServiceUnavailable => {
                error.log();
                Err(Some(Close::Overload))
            }
            Err(_) => {
                socket
                    .say(frames::auth_error(AuthErrorReason::InvalidToken))
                    .await?;
                Err(Some(Close::AuthFailed))
            }
        }
    }

    /// The next moment at which a timer is due.
    fn due(&self) -> DateTime<Utc> {
        let expiry = self.client.expires_at.map(|at| match self.expiry {
            Expiry::Fresh => at - EXPIRY_NOTICE,
            Expiry::Noticed => at,
            Expiry::Expired => at + EXPIRY_GRACE,
        });
        expiry.map_or(self.beat_at, |expiry| expiry.min(self.beat_at))
    }

    async fn tick(&mut self, socket: &mut Socket) -> Result<(), Option<Close>> {
        let now = self.gateway.clock.now();
        if let Some(at) = self.client.expires_at {
            if now >= at + EXPIRY_GRACE {
                socket
                    .say(frames::auth_error(AuthErrorReason::TokenExpired))
                    .await?;
                return Err(Some(Close::AuthFailed));
            }
            if now >= at {
                self.expiry = Expiry::Expired;
            } else if now >= at - EXPIRY_NOTICE && self.expiry == Expiry::Fresh {
                self.expiry = Expiry::Noticed;
                socket
                    .say(frames::encode(&ServerFrame::AuthExpiring(Empty {})))
                    .await?;
            }
        }
        if now >= self.beat_at {
            if self.pinged {
                // A half-open connection has no client that could receive a code.
                return Err(None);
            }
            self.pinged = true;
            self.beat_at = now + PONG_DEADLINE;
            socket.ping().await?;
        }
        Ok(())
    }
}
