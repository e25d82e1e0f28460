//! THE FRAMES of `/ws`: the client's, and the server's answers. `crates/protocol/src/frames.rs`
//! lists them.

pub use blindpipe_protocol::frames::{AuthErrorReason, ServerFrame};
use blindpipe_protocol::{
    agents::ConnectionMode,
    frames::{AuthError, FrameError, RenewAuth},
    inbox::AckFrame,
    stops::{StopTurn, StopTurnFrame},
    text::RequestId,
    typing::{SendTyping, TypingState},
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    cursor::Cursor,
    error::{Code, Error, Result},
    features::streams::{StreamCommand, StreamId, StreamTarget},
    http::json,
    ids::{AgentId, ConversationId, MessageId},
    limits::quotas::{HEARTBEAT_INTERVAL, MAX_GROUP_NAME_CHARS},
};

/// The consumer group of a shared socket that names none.
const DEFAULT_GROUP: &str = "default";

/// The first frame.
pub enum Auth {
    /// `{type:"auth", agent_id, token, resume?, mode?, group?}`
    Agent {
        /// The agent that the token must belong to.
        agent_id: AgentId,
        token: String,
        /// The cursor after which to read.
        resume: Option<String>,
        /// The consumer group of a shared socket; none for a socket that gets everything.
        group: Option<String>,
    },
    /// `{type:"auth", access_token, resume?}`
    User {
        access_token: String,
        /// The cursor after which to read.
        resume: Option<String>,
    },
}

/// A later frame.
pub enum ClientFrame {
    /// `{type:"ack", cursor}`: the client has processed everything up to the cursor.
    Ack(Cursor),
    /// `{type:"auth.renew", access_token}`
    Renew(String),
    /// `{type:"message.send", ref, conversation_id, payload, client_message_id?, in_reply_to?}`
    Send {
        /// An opaque value that the answer repeats.
        reference: Value,
        /// The conversation to send into.
        conversation: ConversationId,
        /// The whole frame. The send path reads the message out of it as out of a request body.
        body: String,
    },
    /// `{type:"typing", ref?, conversation_id, state}`
    Typing {
        /// An opaque value that a refusal repeats.
        reference: Value,
        /// The conversation of the typing.
        conversation: ConversationId,
        /// Whether the client types.
        state: TypingState,
    },
    /// `{type:"stream.begin" | "stream.delta" | "stream.checkpoint" | "stream.status" |
    /// "stream.keepalive" | "stream.cancel", ref?, stream_id, …}`
    Stream {
        /// An opaque value that a refusal repeats.
        reference: Value,
        /// The agent's stream.
        stream: StreamId,
        /// The change of the stream.
        action: StreamCommand,
    },
    /// `{type:"stream.end", ref?, stream_id, payload, client_message_id?, conversation_id?}`
    StreamEnd {
        /// An opaque value that the answer repeats.
        reference: Value,
        /// The stream to end.
        stream: StreamId,
        /// The conversation to send into if the stream is unknown by now.
        conversation: Option<ConversationId>,
        /// The whole frame, read like that of a `message.send`.
        body: String,
    },
    /// `{type:"stream.sync", ref?, stream_id, from_n?}`
    StreamSync {
        /// An opaque value that a refusal repeats.
        reference: Value,
        /// The stream to replay.
        stream: StreamId,
        /// The number of the first delta wanted; none for the newest checkpoint and what follows.
        from: Option<u64>,
    },
    /// `{type:"artifact_request", ref?, request_id, conversation_id, user_id?, tool, scope,
    /// device_id?, payload}`
    ToolRequest {
        /// An opaque value that the answer repeats.
        reference: Value,
        /// The whole frame, read like the body of the route.
        body: String,
    },
    /// `{type:"artifact_response", ref?, request_id, status, reason?, payload?}`
    ToolResponse {
        /// An opaque value that the answer repeats.
        reference: Value,
        /// The call.
        request_id: RequestId,
        /// The whole frame, read like the body of the route.
        body: String,
    },
    /// `{type:"turn.stop", ref?, conversation_id, agent_id?, in_reply_to?}`
    TurnStop {
        /// An opaque value that the answer repeats.
        reference: Value,
        /// The conversation.
        conversation: ConversationId,
        /// The agents to stop.
        asked: StopTurn,
    },
    /// `{type:"ping"}`
    Ping,
}

#[derive(Deserialize)]
struct Tag {
    r#type: String,
}

#[derive(Deserialize)]
struct AuthBody {
    agent_id: Option<AgentId>,
    token: Option<String>,
    access_token: Option<String>,
    resume: Option<Value>,
    mode: Option<Value>,
    group: Option<Value>,
}

#[derive(Deserialize)]
struct SendBody {
    #[serde(default)]
    r#ref: Value,
    conversation_id: ConversationId,
}

#[derive(Deserialize)]
struct ToolRequestBody {
    #[serde(default)]
    r#ref: Value,
}

#[derive(Deserialize)]
struct ToolResponseBody {
    #[serde(default)]
    r#ref: Value,
    request_id: RequestId,
}

#[derive(Deserialize)]
struct StreamBody {
    #[serde(default)]
    r#ref: Value,
    stream_id: StreamId,
    conversation_id: Option<ConversationId>,
    in_reply_to: Option<MessageId>,
    #[serde(default)]
    generation: u32,
    n: Option<u64>,
    data: Option<Box<RawValue>>,
    reason: Option<String>,
    from_n: Option<u64>,
}

/// Longest reason of an agent for cancelling a stream.
const MAX_REASON_CHARS: usize = 200;

/// The largest number of a delta: clients in JavaScript and the scripts in Redis count in doubles.
const MAX_DELTA_NUMBER: u64 = 1 << 52;

fn number(n: Option<u64>) -> Option<u64> {
    n.filter(|n| *n <= MAX_DELTA_NUMBER)
}

fn tag(text: &str) -> Result<String> {
    Ok(json::parse::<Tag>(text.as_bytes())?.r#type)
}

/// The consumer group of a shared socket; none for a socket that gets everything. The token of a
/// malformed frame is not looked at.
fn shared_group(mode: Option<Value>, group: Option<Value>) -> Result<Option<String>> {
    let mode = mode.map(serde_json::from_value::<ConnectionMode>);
    let mode = mode
        .transpose()
        .map_err(|_| Error::from(Code::ValidationError))?;
    match (mode.unwrap_or(ConnectionMode::All), group) {
        (ConnectionMode::All, None) => Ok(None),
        (ConnectionMode::Shared, None) => Ok(Some(DEFAULT_GROUP.to_owned())),
        (ConnectionMode::Shared, Some(Value::String(group)))
            if (1..=MAX_GROUP_NAME_CHARS).contains(&group.chars().count())
                && !group.chars().any(char::is_control) =>
        {
            Ok(Some(group))
        }
        _ => Err(Code::ValidationError.into()),
    }
}

impl Auth {
    /// Reads the first frame. A malformed agent id counts as a wrong token and not a wrong frame:
    /// `None`.
    pub fn read(text: &str) -> Result<Option<Self>> {
        if tag(text)? != "auth" {
            return Err(Code::Unauthorized.into());
        }
        let Ok(mut body) = serde_json::from_str::<AuthBody>(text) else {
            return Ok(None);
        };
        let resume = match body.resume.take() {
            None => None,
            Some(Value::String(cursor)) => Some(cursor),
            // The frame is malformed, and the token is not looked at.
            Some(_) => return Err(Code::ValidationError.into()),
        };
        let group = shared_group(body.mode.take(), body.group.take())?;
        Ok(match body {
            AuthBody {
                agent_id: Some(agent_id),
                token: Some(token),
                access_token: None,
                ..
            } => Some(Auth::Agent {
                agent_id,
                token,
                resume,
                group,
            }),
            AuthBody {
                agent_id: None,
                token: None,
                access_token: Some(access_token),
                ..
            } => Some(Auth::User {
                access_token,
                resume,
            }),
            _ => None,
        })
    }
}

impl ClientFrame {
    /// The reference and the stream of a frame that needs a live credential; none for those that
    /// only keep the socket going.
    pub fn command(&self) -> Option<(&Value, Option<&StreamId>)> {
        match self {
            Self::Ping | Self::Ack(_) | Self::Renew(_) => None,
            Self::Send { reference, .. }
            | Self::Typing { reference, .. }
            | Self::TurnStop { reference, .. }
            | Self::ToolRequest { reference, .. }
            | Self::ToolResponse { reference, .. } => Some((reference, None)),
            Self::Stream {
                reference, stream, ..
            }
            | Self::StreamEnd {
                reference, stream, ..
            }
            | Self::StreamSync {
                reference, stream, ..
            } => Some((reference, Some(stream))),
        }
    }

    /// Reads a later frame; every fault is a fault of the frame.
    pub fn read(text: String) -> Result<Self> {
        fn body<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
            serde_json::from_str(text).map_err(|_| Code::ValidationError.into())
        }
        Ok(match tag(&text)?.as_str() {
            "ack" => ClientFrame::Ack(body::<AckFrame>(&text)?.cursor),
            "auth.renew" => ClientFrame::Renew(body::<RenewAuth>(&text)?.access_token.0),
            "ping" => ClientFrame::Ping,
            "message.send" => {
                let SendBody {
                    r#ref,
                    conversation_id,
                } = body(&text)?;
                ClientFrame::Send {
                    reference: r#ref,
                    conversation: conversation_id,
                    body: text,
                }
            }
            "artifact_request" => ClientFrame::ToolRequest {
                reference: body::<ToolRequestBody>(&text)?.r#ref,
                body: text,
            },
            "artifact_response" => {
                let ToolResponseBody { r#ref, request_id } = body(&text)?;
                ClientFrame::ToolResponse {
                    reference: r#ref,
                    request_id,
                    body: text,
                }
            }
            "turn.stop" => {
                let StopTurnFrame {
                    r#ref,
                    conversation_id,
                    agent_id,
                    in_reply_to,
                } = body(&text)?;
                ClientFrame::TurnStop {
                    reference: r#ref,
                    conversation: conversation_id,
                    asked: StopTurn {
                        agent_id,
                        in_reply_to,
                    },
                }
            }
            "typing" => {
                let SendTyping {
                    r#ref,
                    conversation_id,
                    state,
                } = body(&text)?;
                ClientFrame::Typing {
                    reference: r#ref,
                    conversation: conversation_id,
                    state,
                }
            }
            kind => return Self::of_stream(kind.strip_prefix("stream."), body(&text), text),
        })
    }

    fn of_stream(kind: Option<&str>, body: Result<StreamBody>, text: String) -> Result<Self> {
        let fault = || Error::from(Code::ValidationError);
        let kind = kind.ok_or_else(fault)?;
        let body = body?;
        let (reference, stream) = (body.r#ref, body.stream_id);
        let action = match kind {
            "begin" => {
                let conversation = body.conversation_id.ok_or_else(fault)?;
                let target = StreamTarget {
                    conversation,
                    in_reply_to: body.in_reply_to,
                };
                StreamCommand::Begin(target, body.generation)
            }
            "delta" => StreamCommand::Delta {
                n: number(body.n).ok_or_else(fault)?,
                data: body.data.ok_or_else(fault)?,
            },
            "checkpoint" => StreamCommand::Checkpoint {
                n: number(body.n).ok_or_else(fault)?,
                data: body.data.ok_or_else(fault)?,
            },
            "status" => StreamCommand::Status {
                data: body.data.ok_or_else(fault)?,
            },
            "keepalive" => StreamCommand::KeepAlive,
            "cancel"
                if body
                    .reason
                    .as_ref()
                    .is_some_and(|reason| reason.len() > MAX_REASON_CHARS) =>
            {
                return Err(fault());
            }
            "cancel" => StreamCommand::Cancel {
                reason: body.reason,
            },
            "end" => {
                let conversation = body.conversation_id;
                return Ok(ClientFrame::StreamEnd {
                    reference,
                    stream,
                    conversation,
                    body: text,
                });
            }
            "sync" => {
                let from = body.from_n;
                return Ok(ClientFrame::StreamSync {
                    reference,
                    stream,
                    from,
                });
            }
            _ => return Err(fault()),
        };
        Ok(ClientFrame::Stream {
            reference,
            stream,
            action,
        })
    }
}

/// The text of a frame.
pub fn encode(frame: &ServerFrame) -> String {
    serde_json::to_string(frame).unwrap_or_default()
}

/// The refusal of a client.
pub fn auth_error(reason: AuthErrorReason) -> String {
    encode(&ServerFrame::AuthError(AuthError { reason }))
}

/// The heartbeat interval in `ready`, in milliseconds.
pub fn heartbeat_ms() -> u64 {
    u64::try_from(HEARTBEAT_INTERVAL.as_millis()).unwrap_or_default()
}

/// The answer to a frame that was refused.
pub fn refused(reference: &Value, stream_id: Option<&StreamId>, error: &Error) -> String {
    encode(&ServerFrame::Error(FrameError {
        r#ref: reference.clone(),
        stream_id: stream_id.cloned(),
        error: error.body(),
    }))
}
