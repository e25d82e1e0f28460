//! The frames of `/ws`, of the client and of the server. Each is a JSON object with a `type`.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::{
    agents::ConnectionMode,
    cursor::Cursor,
    errors::ErrorBody,
    events::EventObject,
    ids::{AgentId, ConnectionId, ConversationId, MessageId, Principal},
    inbox::AckFrame,
    messages::Sent,
    raw::RawJson,
    revocation::RevocationReason,
    search::SearchToken,
    stops::{StopTurnFrame, TurnStopped},
    streams::{
        BeginStream, CancelStream, EndStream, KeepStreamAlive, SendCheckpoint, SendDelta,
        SendStatus, StreamBegin, StreamCancel, StreamCheckpoint, StreamDelta, StreamEnd,
        StreamStatus, SyncStream,
    },
    text::{Secret, StreamId},
    time::Timestamp,
    tool_calls::{ArtifactAnswer, ArtifactRequestFrame, ArtifactResponseFrame},
    typing::{SendTyping, TypingNotice},
};

/// A frame without fields other than `type`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Empty {}

macro_rules! frames {
    ($(#[doc = $doc:literal])+ pub enum $name:ident, pub enum $kind:ident {
        $($(#[doc = $row_doc:literal])+ $variant:ident($body:ty) = $word:literal,)+
    }) => {
        words! {
            /// The `type` of a frame.
            pub enum $kind {
                $($(#[doc = $row_doc])+ $variant = $word,)+
            }
        }

        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[serde(tag = "type")]
        pub enum $name {
            $($(#[doc = $row_doc])+ #[serde(rename = $word)] $variant($body),)+
        }

        impl $name {
            /// The kind of the frame.
            pub fn kind(&self) -> $kind {
                match self { $($name::$variant(_) => $kind::$variant,)+ }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            // Payloads keep their bytes, which a tagged enum would lose.
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                struct Tag {
                    r#type: $kind,
                }
                let raw = RawJson::deserialize(from)?;
                let Tag { r#type } = serde_json::from_str(raw.as_str()).map_err(D::Error::custom)?;
                match r#type {
                    $($kind::$variant => serde_json::from_str(raw.as_str()).map($name::$variant),)+
                }
                .map_err(D::Error::custom)
            }
        }
    };
}

frames! {
    /// The frames of a client.
    pub enum ClientFrame, pub enum ClientFrameKind {
        /// The first frame, within 5 s of the upgrade.
        Auth(Auth) = "auth",
        /// The client has processed all events up to a cursor.
        Ack(AckFrame) = "ack",
        /// A fresh access token of the same session.
        AuthRenew(RenewAuth) = "auth.renew",
        /// Sends a message; answered with `message.sent` or `error`.
        MessageSend(SendMessageFrame) = "message.send",
        /// The client's user or agent writes, or has stopped.
        Typing(SendTyping) = "typing",
        /// Announces a stream; agents only.
        StreamBegin(BeginStream) = "stream.begin",
        /// The next piece of a stream.
        StreamDelta(SendDelta) = "stream.delta",
        /// The whole text of a stream so far, for listeners that come late.
        StreamCheckpoint(SendCheckpoint) = "stream.checkpoint",
        /// The agent's activity meanwhile.
        StreamStatus(SendStatus) = "stream.status",
        /// Keeps a silent stream open.
        StreamKeepalive(KeepStreamAlive) = "stream.keepalive",
        /// Ends a stream with its message; answered as `message.send` is.
        StreamEnd(EndStream) = "stream.end",
        /// Ends a stream without a message.
        StreamCancel(CancelStream) = "stream.cancel",
        /// Asks for a stream so far, or for deltas again.
        StreamSync(SyncStream) = "stream.sync",
        /// Asks the devices of a user to run a tool; agents only. Answered with
        /// `artifact.requested` or `error`.
        ArtifactRequest(ArtifactRequestFrame) = "artifact_request",
        /// Answers a tool call for this device; users only. Answered with `artifact.responded` or
        /// `error`.
        ArtifactResponse(ArtifactResponseFrame) = "artifact_response",
        /// Stops agents in a conversation; users only. Answered with `turn.stopped` or `error`.
        TurnStop(StopTurnFrame) = "turn.stop",
        /// Asks for a `pong`.
        Ping(Empty) = "ping",
    }
}

frames! {
    /// The frames of the server.
    pub enum ServerFrame, pub enum ServerFrameKind {
        /// The client is authenticated.
        AuthOk(Empty) = "auth.ok",
        /// The client is not authenticated, or no longer. The server then closes the socket.
        AuthError(AuthError) = "auth.error",
        /// The start of reading. Events follow.
        Ready(Ready) = "ready",
        /// The server has sent all waiting events. New events follow.
        CaughtUp(CaughtUp) = "caught_up",
        /// Events are missing. The client must read its conversations anew.
        ResyncRequired(ResyncRequired) = "resync_required",
        /// A durable event.
        Event(Box<EventObject>) = "event",
        /// A message was stored.
        MessageSent(MessageSent) = "message.sent",
        /// A tool call was made, or found.
        ArtifactRequested(ArtifactAnswer) = "artifact.requested",
        /// A tool call was answered.
        ArtifactResponded(ArtifactAnswer) = "artifact.responded",
        /// Agents were told to stop.
        TurnStopped(TurnStopped) = "turn.stopped",
        /// A frame was refused.
        Error(FrameError) = "error",
        /// The socket continues with the fresh token.
        AuthRenewed(AuthRenewed) = "auth.renewed",
        /// The access token ends in 60 s.
        AuthExpiring(Empty) = "auth.expiring",
        /// The session or token was revoked. The server then closes the socket.
        SessionInvalidated(SessionInvalidated) = "session.invalidated",
        /// The node shuts down. The server then closes the socket.
        Reconnect(ReconnectHint) = "reconnect",
        /// The answer to a `ping`.
        Pong(Empty) = "pong",
        /// A member writes, or has stopped.
        Typing(TypingNotice) = "typing",
        /// An agent has begun a stream.
        StreamBegin(StreamBegin) = "stream.begin",
        /// The next piece of a stream.
        StreamDelta(StreamDelta) = "stream.delta",
        /// The text of a stream so far, in the answer to `stream.sync`.
        StreamCheckpoint(StreamCheckpoint) = "stream.checkpoint",
        /// The agent's activity meanwhile.
        StreamStatus(StreamStatus) = "stream.status",
        /// A stream has become a message.
        StreamEnd(StreamEnd) = "stream.end",
        /// A stream has ended without a message.
        StreamCancel(StreamCancel) = "stream.cancel",
    }
}

/// `auth`: an agent by its token, a user by an access token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum Auth {
    /// An agent.
    Agent(AgentAuth),
    /// A user.
    User(UserAuth),
}

/// `auth` of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AgentAuth {
    /// The agent that the token belongs to.
    pub agent_id: AgentId,
    /// The agent token.
    pub token: Secret,
    /// The cursor of the last processed event. If omitted, reading starts after the last ack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Cursor>,
    /// Whether the connection gets everything or a share; `all` if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ConnectionMode>,
    /// The consumer group of a shared connection, 1 to 64 characters; `default` if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// `auth` of a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UserAuth {
    /// The access token.
    pub access_token: Secret,
    /// The cursor of the last processed event. If omitted, reading starts after the last ack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Cursor>,
}

/// `auth.renew`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RenewAuth {
    /// An access token of the same user and session.
    pub access_token: Secret,
}

/// `message.send`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SendMessageFrame {
    /// A reference that the answer repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The target conversation.
    pub conversation_id: ConversationId,
    /// An object with a string `type`, at most 1 MB.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub payload: RawJson,
    /// The sender's own id, which readers see. An id sends a single message within 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_message_id: Option<MessageId>,
    /// The sender's own id under another name, a UUID of version 4. Readers do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<uuid::Uuid>,
    /// The message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<MessageId>,
    /// The members that the message names, 1 to 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipients: Option<Vec<Principal>>,
    /// Keyed hashes by which the members' clients find the message, at most 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search_tokens: Option<Vec<SearchToken>>,
    /// The messages of the conversation that this one concerns, at most 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refs: Option<Vec<MessageId>>,
}

words! {
    /// The reason for refusing a client.
    pub enum AuthErrorReason {
        /// The token is wrong, revoked, or of another principal.
        InvalidToken = "invalid_token",
        /// The access token has expired.
        TokenExpired = "token_expired",
        /// Too many connections were opened in a minute.
        RateLimited = "rate_limited",
        /// The principal has reached its quota of connections.
        ConnectionLimit = "connection_limit",
    }
}

/// `auth.error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AuthError {
    /// The reason.
    pub reason: AuthErrorReason,
}

/// `ready`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Ready {
    /// This connection.
    pub connection_id: ConnectionId,
    /// The cursor after which reading starts.
    pub cursor: Cursor,
    /// The interval of the server's pings, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// The end of the access token; absent for agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_expires_at: Option<Timestamp>,
    /// The events that the server sends before `caught_up`.
    pub replay: Replay,
}

/// The events after `from` up to `to`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Replay {
    /// The number before the first event.
    pub from: i64,
    /// The number of the last event at this time.
    pub to: i64,
}

/// `caught_up`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CaughtUp {
    /// The last event sent.
    pub cursor: Cursor,
}

/// `resync_required`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResyncRequired {
    /// The event before the oldest stored event.
    pub oldest: Cursor,
    /// The newest event.
    pub head: Cursor,
}

/// `message.sent`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MessageSent {
    /// The reference from the frame; null if it had none.
    #[serde(default)]
    pub r#ref: Value,
    /// The stream that ended; absent for `message.send`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_id: Option<StreamId>,
    /// The message.
    pub data: Sent,
}

/// `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FrameError {
    /// The reference from the frame; null if it had none.
    #[serde(default)]
    pub r#ref: Value,
    /// The stream that the frame named; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_id: Option<StreamId>,
    /// The error.
    pub error: ErrorBody,
}

/// `auth.renewed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AuthRenewed {
    /// The end of the fresh token.
    pub expires_at: Timestamp,
}

/// `session.invalidated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionInvalidated {
    /// The reason.
    pub reason: RevocationReason,
    /// The device of the session; absent for agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// The time of this frame.
    pub at: Timestamp,
}

/// `reconnect`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReconnectHint {
    /// The wait before the next try, in milliseconds.
    pub after_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T>(text: &str) -> T
    where
        T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
    {
        let frame: T = serde_json::from_str(text).expect(text);
        let written = serde_json::to_string(&frame).expect("JSON");
        assert_eq!(written, text);
        frame
    }

    #[test]
    fn client_frames_read_what_they_write() {
        for text in [
            r#"{"type":"auth","agent_id":"0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e","token":"hsk_x","resume":"1-2"}"#,
            r#"{"type":"auth","access_token":"x"}"#,
            r#"{"type":"ack","cursor":"1-2"}"#,
            r#"{"type":"message.send","ref":1,"conversation_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","payload":{ "type":"t","n":1.0 }}"#,
            r#"{"type":"typing","conversation_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","state":"started"}"#,
            r#"{"type":"stream.delta","stream_id":"s","n":0,"data":"x"}"#,
            r#"{"type":"stream.sync","ref":"r","stream_id":"s","from_n":4}"#,
            r#"{"type":"stream.sync","stream_id":"s"}"#,
            r#"{"type":"stream.begin","stream_id":"s","conversation_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","generation":1}"#,
            r#"{"type":"stream.checkpoint","stream_id":"s","n":31,"data":"x"}"#,
            r#"{"type":"stream.status","stream_id":"s","data":"x"}"#,
            r#"{"type":"stream.keepalive","stream_id":"s"}"#,
            r#"{"type":"artifact_request","request_id":"r1","conversation_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","tool":"t","scope":"s","payload":{ "n":1.0 }}"#,
            r#"{"type":"artifact_response","ref":1,"request_id":"r1","status":"executed","payload":{}}"#,
            r#"{"type":"turn.stop","ref":1,"conversation_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}"#,
            r#"{"type":"ping"}"#,
        ] {
            round_trip::<ClientFrame>(text);
        }
    }

    #[test]
    fn server_frames_read_what_they_write() {
        for text in [
            r#"{"type":"auth.ok"}"#,
            r#"{"type":"auth.error","reason":"invalid_token"}"#,
            r#"{"type":"caught_up","cursor":"10000-3"}"#,
            r#"{"type":"error","ref":null,"error":{"code":"NOT_FOUND","message":"m","i18n_key":"errors.not_found","params":{"retryable":false}}}"#,
            r#"{"type":"turn.stopped","ref":1,"data":{"stopped":2}}"#,
            r#"{"type":"session.invalidated","reason":"logout","at":"2026-03-01T12:00:00.000Z"}"#,
            r#"{"type":"stream.cancel","stream_id":"s","conversation_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","reason":"idle","sender":{"type":"agent","id":"0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e"}}"#,
        ] {
            round_trip::<ServerFrame>(text);
        }
    }

    #[test]
    fn an_unknown_frame_is_none() {
        assert!(serde_json::from_str::<ClientFrame>(r#"{"type":"dance"}"#).is_err());
        assert!(serde_json::from_str::<ClientFrame>("[]").is_err());
    }
}
