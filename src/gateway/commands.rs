//! The commands of a socket, which write: `message.send`, `stream.end`, `artifact_request`,
//! `artifact_response` and `turn.stop`. They run in turn, so they keep their order.

use std::{collections::VecDeque, pin::Pin};

use blindpipe_protocol::{
    frames::MessageSent,
    stops::{StopTurn, StoppedTurns, TurnStopped},
    text::RequestId,
    tool_calls::{ArtifactAnswer, ToolCallState},
};
use serde_json::Value;
use tracing::Instrument;

use super::{
    Gateway,
    authenticate::AuthenticatedClient,
    close::{Close, SessionEnd},
    frames::{self, ServerFrame},
    socket::Socket,
};
use crate::{
    auth::agent::Agent,
    error::{Code, Error, Result},
    features::{
        messages::{Draft, MessageWriter, SendRequest, Sent},
        stops::{Stopper, Stops},
        streams::{StreamId, StreamKey, Streams, key_of},
        tool_calls::{self, Responder},
    },
    ids::{ConversationId, Credential, Principal, SessionId, UserId},
    limits::{Limiter, Limits, buffers::BytePermit, quotas::MB, table::Limit},
    telemetry::trace,
    work::UnitOfWork,
};

/// Commands that may wait for their turn. Beyond that the socket is not read until one is answered.
const MAX_PENDING_COMMANDS: usize = 64;
/// Bytes of the commands that may wait, likewise.
const MAX_PENDING_BYTES: usize = 2 * MB;

/// A command with its outcome.
pub struct FinishedCommand {
    /// The opaque value of the frame.
    pub reference: Value,
    /// The stream that the command ends.
    pub stream: Option<StreamId>,
    /// The outcome of the command.
    pub outcome: Result<Outcome>,
}

/// The outcome of a frame that was not refused.
pub enum Outcome {
    /// The message was stored.
    Sent(Sent),
    /// The call was made, or found.
    Requested(ToolCallState),
    /// The call was answered.
    Responded(ToolCallState),
    /// Agents were stopped.
    Stopped(StoppedTurns),
}

/// The target of a command.
pub enum Target {
    /// A conversation.
    Conversation(ConversationId),
    /// The conversation of a stream, which ends with the command. If the stream is unknown, the named
    /// conversation.
    Stream(StreamId, Option<ConversationId>),
    /// The devices of the user that the frame asks.
    ToolRequest,
    /// The tool call that the frame answers.
    ToolResponse(RequestId),
    /// The agents of a conversation.
    Stop(ConversationId, StopTurn),
}

impl Target {
    /// The name of the frame.
    fn frame(&self) -> &'static str {
        match self {
            Target::Conversation(_) => "message.send",
            Target::Stream(..) => "stream.end",
            Target::ToolRequest => "artifact_request",
            Target::ToolResponse(_) => "artifact_response",
            Target::Stop(..) => "turn.stop",
        }
    }
}

/// A command that waits for its turn.
struct Pending {
    reference: Value,
    target: Target,
    body: String,
    /// The bytes of a large body, held until its command is over.
    permit: Option<BytePermit>,
    /// The ephemeral frames of the socket that come before it.
    after: u64,
}

/// The command in progress, and those that wait.
#[derive(Default)]
pub struct CommandQueue {
    running: Option<Pin<Box<dyn Future<Output = FinishedCommand> + Send>>>,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
}

impl CommandQueue {
    /// Whether another command may wait.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING_COMMANDS && self.pending_bytes < MAX_PENDING_BYTES
    }

    /// Whether no command is in progress and none waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.pending.is_empty()
    }

    /// Queues a frame behind the first `after` ephemeral frames of the socket.
    pub fn push(
        &mut self,
        reference: Value,
        target: Target,
        body: String,
        permit: Option<BytePermit>,
        after: u64,
    ) {
        self.pending_bytes += body.len();
        self.pending.push_back(Pending {
            reference,
            target,
            body,
            permit,
            after,
        });
    }

    /// Starts the next command if none is in progress and `finished` ephemeral frames are over.
    pub fn start_next(&mut self, gateway: &Gateway, client: &AuthenticatedClient, finished: u64) {
        let is_due = |next: &mut Pending| next.after <= finished;
        if self.running.is_some() {
            return;
        }
        let Some(Pending {
            reference,
            target,
            body,
            permit,
            ..
        }) = self.pending.pop_front_if(is_due)
        else {
            return;
        };
        self.pending_bytes -= body.len();
        let runner = CommandRunner {
            limits: gateway.limits.clone(),
            work: gateway.work.clone(),
            message_writer: gateway.message_writer.clone(),
            streams: gateway.streams.clone(),
            stops: gateway.stops.clone(),
            sender: client.principal,
            credential: client.credential,
        };
        let random = gateway.random.clone();
        let span = trace::of_frame(target.frame(), || random.fraction());
        let answered = async move {
            let outcome = runner.perform(&target, &body).await;
            drop(permit);
            let stream = match target {
                Target::Stream(stream, _) => Some(stream),
                _ => None,
            };
            FinishedCommand {
                reference,
                stream,
                outcome,
            }
        };
        self.running = Some(Box::pin(answered.instrument(span)));
    }

    /// The outcome of the command in progress; never, if there is none. Cancel safe.
    pub async fn answered(&mut self) -> FinishedCommand {
        let Some(running) = &mut self.running else {
            return std::future::pending().await;
        };
        let answer = running.await;
        self.running = None;
        answer
    }
}

/// The handles that a command needs of its socket and node.
struct CommandRunner {
    limits: Limits,
    work: UnitOfWork,
    message_writer: MessageWriter,
    streams: Streams,
    stops: Stops,
    sender: Principal,
    credential: Credential,
}

impl CommandRunner {
    async fn perform(&self, target: &Target, body: &str) -> Result<Outcome> {
        match target {
            Target::ToolRequest => Box::pin(self.request(body)).await.map(Outcome::Requested),
            Target::ToolResponse(id) => {
                let responded = Box::pin(self.respond(id, body)).await;
                responded.map(Outcome::Responded)
            }
            Target::Stop(conversation, asked) => {
                let stopped = Box::pin(self.stop(*conversation, *asked)).await;
                stopped.map(Outcome::Stopped)
            }
            Target::Conversation(_) | Target::Stream(..) => {
                self.send(target, body).await.map(Outcome::Sent)
            }
        }
    }

    async fn request(&self, body: &str) -> Result<ToolCallState> {
        let (Principal::Agent(id), Credential::Token(token)) = (self.sender, self.credential)
        else {
            return Err(Code::Forbidden.into());
        };
        let route = tool_calls::http::REQUEST_ROUTE;
        let limiter = Limiter::detached_on(self.limits.clone(), route);
        limiter.check_default(self.sender).await?;
        let agent = Agent { id, token };
        let request = tool_calls::read_request(body.as_bytes())?;
        let requested = tool_calls::request(&self.work, agent, &request).await?;
        Ok(requested.state)
    }

    /// The user of the socket, and the session.
    fn user(&self) -> Result<(UserId, SessionId)> {
        match (self.sender, self.credential) {
            (Principal::User(user), Credential::Session(session)) => Ok((user, session)),
            _ => Err(Code::Forbidden.into()),
        }
    }

    async fn respond(&self, id: &RequestId, body: &str) -> Result<ToolCallState> {
        let (user, session) = self.user()?;
        let route = tool_calls::http::RESPONSE_ROUTE;
        let limiter = Limiter::detached_on(self.limits.clone(), route);
        limiter.check_default(self.sender).await?;
        let responder = Responder { user, session };
        let response = tool_calls::read_response(body.as_bytes())?;
        tool_calls::respond(&self.work, responder, &id.0, &response).await
    }

    async fn stop(&self, conversation: ConversationId, asked: StopTurn) -> Result<StoppedTurns> {
        let (user, session) = self.user()?;
        let limiter = Limiter::detached(self.limits.clone());
        limiter.check(Limit::TurnStop, user).await?;
        let by = Stopper { user, session };
        self.stops.stop(by, conversation, asked).await
    }

    async fn send(&self, target: &Target, body: &str) -> Result<Sent> {
        let limiter = Limiter::detached(self.limits.clone());
        let (draft, conversation, stream) = match self.sender {
            Principal::Agent(id) => {
                let read = self.read(target, body, Code::WebhookPayloadTooLarge);
                let limit = Limit::AgentConversationSend;
                limiter.check_during(limit, id, read).await?
            }
            Principal::User(id) => {
                let read = self.read(target, body, Code::MessageTooLarge);
                let limit = Limit::UserMessageSend;
                limiter.check_during(limit, id, read).await?
            }
        };
        let request = SendRequest {
            sender: self.sender,
            credential: self.credential,
            conversation,
            draft,
        };
        let sent = self.message_writer.send(request).await?;
        if let Some(stream) = stream {
            self.streams
                .sent(&stream, conversation, sent.message_id)
                .await;
        }
        Ok(sent)
    }

    /// Reads the draft, its conversation, and the stream that it ends.
    async fn read(
        &self,
        target: &Target,
        body: &str,
        too_large: Code,
    ) -> Result<(Draft, ConversationId, Option<StreamKey>)> {
        let mut draft = Draft::from_frame(body, too_large)?;
        let (stream, named) = match target {
            Target::Conversation(conversation) => return Ok((draft, *conversation, None)),
            Target::Stream(stream, named) => (key_of(self.sender, stream.clone())?, *named),
            // These are no messages.
            Target::ToolRequest | Target::ToolResponse(_) | Target::Stop(..) => {
                return Err(Code::NotFound.into());
            }
        };
        let home = self.streams.target(&stream).await;
        let conversation = home
            .map(|home| home.conversation)
            .or(named)
            .ok_or(Code::NotFound)?;
        draft.in_reply_to = draft.in_reply_to.or(home.and_then(|home| home.in_reply_to));
        Ok((draft, conversation, Some(stream)))
    }
}

/// Queues the refusal of a frame.
pub fn refuse(socket: &mut Socket, reference: &Value, stream: Option<&StreamId>, error: &Error) {
    error.log_in("gateway.frame", "the frame is refused and its sender told");
    socket.feed(&frames::refused(reference, stream, error));
}

/// Queues the outcome of a command.
pub fn answer(socket: &mut Socket, answered: &FinishedCommand) -> Result<(), SessionEnd> {
    let FinishedCommand {
        reference,
        stream,
        outcome,
    } = answered;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            refuse(socket, reference, stream.as_ref(), error);
            // A sender whose credential was revoked may not read either.
            let revoked = matches!(error.code(), Code::Unauthorized | Code::AgentTokenInvalid);
            return if revoked {
                Err(Close::Revoked.into())
            } else {
                Ok(())
            };
        }
    };
    let r#ref = reference.clone();
    let call = |state: &ToolCallState| ArtifactAnswer {
        r#ref: reference.clone(),
        data: state.clone(),
    };
    let frame = match outcome {
        Outcome::Sent(sent) => ServerFrame::MessageSent(MessageSent {
            r#ref,
            stream_id: stream.clone(),
            data: sent.clone(),
        }),
        Outcome::Requested(state) => ServerFrame::ArtifactRequested(call(state)),
        Outcome::Responded(state) => ServerFrame::ArtifactResponded(call(state)),
        Outcome::Stopped(data) => ServerFrame::TurnStopped(TurnStopped { r#ref, data: *data }),
    };
    socket.feed(&frames::encode(&frame));
    Ok(())
}
