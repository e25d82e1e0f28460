//! Frames of the client: each is counted, parsed and handled.

use blindpipe_protocol::frames::{AuthRenewed, Empty};
use serde_json::Value;

use super::{Expiry, Session};
use crate::{
    auth::user::UserToken,
    cursor::Cursor,
    error::Code,
    features::streams::StreamCommand,
    gateway::{
        close::{Close, SessionEnd},
        commands::{Target, refuse},
        ephemeral_frames::EphemeralFrame,
        frames::{self, AuthErrorReason, ClientFrame, ServerFrame},
        socket::{Incoming, Socket},
    },
    ids::{Credential, Principal},
    limits::{
        Limiter,
        buffers::{BytePermit, Owner},
        quotas::{
            FREE_SOCKET_BYTES, HEARTBEAT_INTERVAL, MAX_ACKS_PER_SECOND, MAX_DELTAS_PER_SECOND,
            MAX_FRAMES_PER_SECOND,
        },
        table::Limit,
    },
    metrics,
    planted::PlantedBug,
};

impl Session<'_> {
    /// Handles what the socket has brought.
    pub(super) async fn handle_incoming(
        &mut self,
        incoming: Incoming,
        socket: &mut Socket,
    ) -> Result<(), SessionEnd> {
        self.pinged = false;
        self.heartbeat_at = self.gateway.clock.now() + HEARTBEAT_INTERVAL;
        let text = match incoming {
            Incoming::Text(text) => text,
            Incoming::Binary(_) => return Err(Close::Unsupported.into()),
            Incoming::Alive if self.frames.over(MAX_FRAMES_PER_SECOND) => {
                return Err(Close::Flood.into());
            }
            Incoming::Alive => return Ok(()),
            Incoming::Gone => return Err(SessionEnd::PeerGone),
            Incoming::Fault(close) => return Err(close.into()),
        };
        let frame = ClientFrame::read(text);
        // A client may ack a whole backlog event by event. Acks are gathered and cost little.
        let flood = match frame {
            Ok(ClientFrame::Ack(_)) => self.acks.over(MAX_ACKS_PER_SECOND),
            // Deltas and statuses share a budget of their own.
            Ok(ClientFrame::Stream {
                action: StreamCommand::Delta { .. } | StreamCommand::Status { .. },
                ..
            }) => self.deltas.over(MAX_DELTAS_PER_SECOND),
            _ => self.frames.over(MAX_FRAMES_PER_SECOND),
        };
        match frame {
            _ if flood => Err(Close::Flood.into()),
            Ok(frame) => self.handle(frame, socket).await,
            Err(_) => Err(Close::BadFrame.into()),
        }
    }

    async fn handle(&mut self, frame: ClientFrame, socket: &mut Socket) -> Result<(), SessionEnd> {
        if self.has_expired()
            && let Some((reference, stream)) = frame.command()
        {
            refuse(socket, reference, stream, &Code::Unauthorized.into());
            return Ok(());
        }
        match frame {
            ClientFrame::Ping => {
                let pong = frames::encode(&ServerFrame::Pong(Empty {}));
                socket.feed(&pong);
            }
            ClientFrame::Ack(cursor) => self.ack(cursor),
            ClientFrame::Renew(token) => {
                let credential = self.client.credential;
                match self.limiter().check(Limit::AuthRenew, credential).await {
                    Ok(()) => self.renew(&token, socket).await?,
                    Err(error) => refuse(socket, &Value::Null, None, &error),
                }
            }
            ClientFrame::Send {
                reference,
                conversation,
                body,
            } => {
                let permit = self.hold(body.len())?;
                self.send(reference, Target::Conversation(conversation), body, permit);
            }
            ClientFrame::StreamEnd {
                reference,
                stream,
                conversation,
                body,
            } => {
                let permit = self.hold(body.len())?;
                let target = Target::Stream(stream, conversation);
                self.send(reference, target, body, permit);
            }
            ClientFrame::ToolRequest { reference, body } => {
                let permit = self.hold(body.len())?;
                self.send(reference, Target::ToolRequest, body, permit);
            }
            ClientFrame::ToolResponse {
                reference,
                request_id,
                body,
            } => {
                let permit = self.hold(body.len())?;
                let target = Target::ToolResponse(request_id);
                self.send(reference, target, body, permit);
            }
            ClientFrame::TurnStop {
                reference,
                conversation,
                asked,
            } => {
                let target = Target::Stop(conversation, asked);
                self.send(reference, target, String::new(), None);
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
                self.ephemeral_frames.push(
                    reference,
                    EphemeralFrame::Typing(conversation, state),
                    None,
                );
            }
            ClientFrame::Stream {
                reference,
                stream,
                action,
            } => {
                let frame = EphemeralFrame::Stream(stream, action);
                let permit = self.hold(frame.bytes())?;
                self.ephemeral_frames.push(reference, frame, permit);
            }
        }
        Ok(())
    }

    /// Queues a command behind the ephemeral frames so far.
    fn send(&mut self, reference: Value, target: Target, body: String, permit: Option<BytePermit>) {
        let after = self.ephemeral_frames.pushed();
        self.commands.push(reference, target, body, permit, after);
    }

    /// A permit for a large body that waits for its turn.
    fn hold(&self, bytes: usize) -> Result<Option<BytePermit>, SessionEnd> {
        if bytes <= FREE_SOCKET_BYTES {
            return Ok(None);
        }
        let owner = Owner::Principal(self.client.principal.id());
        let permit = self.gateway.buffers.take(owner, bytes);
        permit.map(Some).map_err(|_| Close::SlowConsumer.into())
    }

    fn limiter(&self) -> Limiter {
        Limiter::detached(self.gateway.limits.clone())
    }

    /// Notes a durable ack. An ack of another epoch says nothing about this one.
    fn ack(&mut self, cursor: Cursor) {
        if self.client.shared.is_some() {
            if !self.subscription.is_ended() {
                self.note_shared_ack(cursor);
            }
            return;
        }
        // An ack of a revoked credential would move the agent's shared position.
        if cursor.epoch == self.epoch && !self.subscription.is_ended() {
            let sent = self.subscription.sent();
            let seq = match PlantedBug::AckIsEarly.is_planted() {
                true => sent,
                false => cursor.seq.min(sent),
            };
            metrics::inbox_lag(sent - seq);
            self.gateway.acks.note(
                &self.client.reader,
                Cursor {
                    epoch: cursor.epoch,
                    seq,
                },
                self.client.credential.id(),
            );
            self.note_reachable();
        }
    }

    /// Notes that an agent handles its events.
    pub(super) fn note_reachable(&self) {
        if let Principal::Agent(agent) = self.client.principal {
            self.gateway.reachability.note(agent);
        }
    }

    /// A token of the same user and session goes on; any other ends the socket.
    async fn renew(&mut self, token: &str, socket: &mut Socket) -> Result<(), SessionEnd> {
        let user_token = UserToken::from_token(&self.gateway.access_tokens, token);
        let same = user_token.ok().filter(|user_token| {
            Principal::User(user_token.user) == self.client.principal
                && Credential::Session(user_token.session) == self.client.credential
        });
        let verified = match same {
            Some(user_token) => {
                let verified = user_token
                    .check_live(&self.gateway.db, &self.gateway.access_tokens.revoked)
                    .await;
                verified.map(|_| user_token.expires_at)
            }
            None => Err(Code::Unauthorized.into()),
        };
        match verified {
            Ok(expires_at) => {
                self.client.expires_at = Some(expires_at);
                let waited = self.expiry == Expiry::Expired;
                self.expiry = Expiry::Fresh;
                socket.feed(&frames::encode(&ServerFrame::AuthRenewed(AuthRenewed {
                    expires_at: expires_at.into(),
                })));
                if waited {
                    // The mailbox was emptied meanwhile, but it still has its head.
                    let head = self.subscription.take().head;
                    Box::pin(self.read_to(head, socket)).await?;
                }
                Ok(())
            }
            Err(error) if error.code() == Code::ServiceUnavailable => {
                error.log_in(
                    "gateway.renew",
                    "the socket closes and its client reconnects",
                );
                Err(Close::Overload.into())
            }
            Err(_) => {
                socket.feed(&frames::auth_error(AuthErrorReason::InvalidToken));
                Err(Close::AuthFailed.into())
            }
        }
    }
}
