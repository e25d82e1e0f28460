//! Streams: deltas of an agent's answer that end in a message. No inbox holds them.
//!
//! Promises: listeners get a stream's deltas in order and never after its message. A stream belongs
//! to its agent: it outlives sockets and nodes, any node goes on with it, and any node replays it
//! ([`state`]). It ends with its message, a cancel, or a minute without a sign ([`upkeep`]).
//!
//! Nothing durable depends on it. A stream whose state is lost is begun again by its client, or
//! ends for its listeners after a minute ([`heard`]).
//!
//! Why: ADR 18.

mod frames;
mod heard;
pub(crate) mod http;
mod id;
mod opening;
mod position;
mod state;
mod syncs;
mod upkeep;

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::{
    frames::ServerFrame,
    raw::RawJson,
    streams::{StreamCheckpoint, StreamDelta, StreamStatus},
};
use moka::sync::Cache;
use serde_json::value::RawValue;

pub use self::{
    frames::StreamCommand,
    heard::HeardStreams,
    id::{StreamId, StreamKey, StreamTarget, key_of},
    position::StreamPeer,
    state::StreamState,
    syncs::{Replay, StreamSyncs, SyncAnswer, without_the_past},
};
use self::{
    frames::{encode, ended, sender, size},
    opening::OpenStream,
    position::{StreamAction, StreamPosition},
    state::{CloseResult, Ending, Sign, Verdict},
};
use crate::{
    clock::Clock,
    delivery::{Backplane, ephemeral::EphemeralEvent},
    error::{Code, Error, Result},
    features::conversations::Audience,
    ids::{AgentId, ConversationId, MessageId, Principal, PrincipalId},
    limits::quotas::{
        MAX_CHECKPOINT_BYTES, MAX_DELTA_BYTES, MAX_STREAM_DELTAS_PER_SECOND,
        MAX_STREAM_STATE_BYTES, MAX_STREAM_STATUS_BYTES, MB, STREAM_CHECKPOINT_INTERVAL,
        STREAM_IDLE_TIMEOUT,
    },
    random::Random,
    redis::Away,
};

/// The reason that listeners see when a user has stopped the agent.
const USER_STOPPED: &str = "user_stopped";
/// The reason that listeners see when a stream has given no sign for too long.
const IDLE: &str = "idle";

/// The streams as a node handles them. Clones share everything.
#[derive(Clone)]
pub struct Streams {
    clock: Clock,
    random: Random,
    state: StreamState,
    heard: HeardStreams,
    audience: Audience,
    backplane: Backplane,
    /// The streams that this node's sockets have used. Redis says whether an entry still holds.
    open: Cache<StreamKey, Arc<OpenStream>>,
}

impl Streams {
    /// The target of a stream, also shortly after its end, because its message may be sent again.
    pub async fn target(&self, key: &StreamKey) -> Option<StreamTarget> {
        match self.state.load(key).await {
            Ok((_, known)) => known.map(|known| known.home.target()),
            Err(Away) => self.open.get(key).map(|open| open.target),
        }
    }

    /// Handles a frame of an agent about its stream, but its end.
    pub async fn frame(
        &self,
        who: Principal,
        stream: StreamId,
        action: StreamCommand,
    ) -> Result<()> {
        let key = key_of(who, stream)?;
        match action {
            StreamCommand::Begin(target, generation) => self.begin(&key, target, generation).await,
            StreamCommand::Delta { n, data } => {
                fits(&data, MAX_DELTA_BYTES)?;
                self.say(&key, Saying::Delta(n, data)).await
            }
            StreamCommand::Status { data } => {
                fits(&data, MAX_STREAM_STATUS_BYTES)?;
                self.say(&key, Saying::Status(data)).await
            }
            StreamCommand::Checkpoint { n, data } => {
                fits(&data, MAX_CHECKPOINT_BYTES)?;
                self.checkpoint(&key, n, data).await
            }
            StreamCommand::KeepAlive => {
                let (conversation, _) = self.speak(&key).await?;
                let taken = self.sign(&key, conversation, Sign::KeepAlive).await;
                taken.map(drop)
            }
            StreamCommand::Cancel { reason } => {
                let open = self.open(&key).await?;
                let ending = Ending::Cancelled(reason);
                let conversation = open.target.conversation;
                match self.close(&key, conversation, &ending).await? {
                    CloseResult::Now => Ok(()),
                    CloseResult::Before | CloseResult::Unknown => Err(Code::NotFound.into()),
                }
            }
        }
    }

    /// The conversation of an open stream and its listeners, if the agent may still speak there.
    /// Otherwise the stream ends.
    async fn speak(&self, key: &StreamKey) -> Result<(ConversationId, Vec<PrincipalId>)> {
        let conversation = self.open(key).await?.target.conversation;
        match self.listeners(key, conversation).await {
            Err(error) if error.code() != Code::ServiceUnavailable => {
                let ending = Ending::Cancelled(Some("not_member".to_owned()));
                self.close(key, conversation, &ending).await.ok();
                Err(error)
            }
            listeners => Ok((conversation, listeners?)),
        }
    }

    /// Publishes a delta or a status.
    async fn say(&self, key: &StreamKey, saying: Saying) -> Result<()> {
        let (conversation_id, listeners) = self.speak(key).await?;
        let (stream_id, sender) = (key.stream.clone(), sender(key));
        let (text, action) = match saying {
            Saying::Delta(n, data) => {
                let delta = StreamDelta {
                    stream_id,
                    conversation_id,
                    n,
                    data: RawJson(data),
                    sender,
                };
                (
                    encode(&ServerFrame::StreamDelta(delta)),
                    StreamAction::Delta(n),
                )
            }
            Saying::Status(data) => {
                let status = StreamStatus {
                    stream_id,
                    conversation_id,
                    data: RawJson(data),
                    sender,
                };
                (
                    encode(&ServerFrame::StreamStatus(status)),
                    StreamAction::Status,
                )
            }
        };
        let sign = match action {
            StreamAction::Delta(n) => Sign::Delta(n, &text),
            _ => Sign::Status(&text),
        };
        self.sign(key, conversation_id, sign).await?;
        self.publish_frame(&listeners, key, conversation_id, action, text);
        Ok(())
    }

    async fn checkpoint(&self, key: &StreamKey, n: u64, data: Box<RawValue>) -> Result<()> {
        // Redis refuses it as well. Here, many of them cost Redis nothing.
        let now = self.clock.now();
        if let Some(wait) = self.open(key).await?.checkpoint_wait(now) {
            return Err(too_often(wait));
        }
        let (conversation_id, _) = self.speak(key).await?;
        let text = encode(&ServerFrame::StreamCheckpoint(StreamCheckpoint {
            stream_id: key.stream.clone(),
            conversation_id,
            n,
            data: RawJson(data),
            sender: sender(key),
        }));
        let sign = Sign::Checkpoint(n, &text);
        let open = self.sign(key, conversation_id, sign).await?;
        open.note_checkpoint(now);
        Ok(())
    }

    /// Gives Redis a sign of an open stream. This node's memory of the stream may be old, so
    /// an unknown stream is looked up once.
    async fn sign(
        &self,
        key: &StreamKey,
        conversation: ConversationId,
        sign: Sign<'_>,
    ) -> Result<Arc<OpenStream>> {
        let mut open = self.open(key).await?;
        let mut verdict = self.give(key, conversation, &open, &sign).await?;
        if matches!(verdict, Verdict::Unknown) {
            self.open.remove(key);
            open = self.open(key).await?;
            verdict = self.give(key, conversation, &open, &sign).await?;
        }
        match verdict {
            Verdict::Taken => Ok(open),
            Verdict::Unknown => {
                self.open.remove(key);
                Err(Code::NotFound.into())
            }
            Verdict::Order(next) => {
                let expected = format!("the next delta is {next}");
                Err(Error::field("n", "order", &expected))
            }
            Verdict::Wait(wait) if matches!(sign, Sign::Checkpoint(..)) => Err(too_often(wait)),
            Verdict::Wait(wait) => {
                let limit = format!("{MAX_STREAM_DELTAS_PER_SECOND}/s");
                Err(Error::too_many(limit, "agent_stream_delta", wait))
            }
            Verdict::Full => {
                let limit = format!("{} MB of streams", MAX_STREAM_STATE_BYTES / MB);
                Err(Error::too_many(
                    limit,
                    "agent_stream_bytes",
                    STREAM_IDLE_TIMEOUT,
                ))
            }
        }
    }

    async fn give(
        &self,
        key: &StreamKey,
        conversation: ConversationId,
        open: &OpenStream,
        sign: &Sign<'_>,
    ) -> Result<Verdict> {
        // It has begun anew elsewhere, for other listeners.
        if open.target.conversation != conversation {
            return Ok(Verdict::Unknown);
        }
        let verdict = self.state.sign(key, &open.life, sign).await;
        verdict.map_err(away)
    }

    async fn listeners(
        &self,
        key: &StreamKey,
        conversation: ConversationId,
    ) -> Result<Vec<PrincipalId>> {
        let who = Principal::Agent(key.agent);
        self.audience
            .of_speaker(who, conversation, Code::NotConversationMember)
            .await
    }

    /// Ends an open stream without a message, and tells its listeners and its agent.
    async fn close(
        &self,
        key: &StreamKey,
        conversation: ConversationId,
        ending: &Ending,
    ) -> Result<CloseResult> {
        let closed = self.state.close(key, conversation, ending).await;
        let closed = closed.map_err(away)?;
        self.open.remove(key);
        if closed == CloseResult::Now {
            self.publish_cancel(key, conversation, ending).await;
        }
        Ok(closed)
    }

    async fn publish_cancel(&self, key: &StreamKey, conversation: ConversationId, ending: &Ending) {
        // Without Postgres the recipients are unknown. Their nodes look the stream up later.
        if let Ok(listeners) = self.audience.all(conversation).await {
            let text = ended(key, conversation, ending);
            self.publish_frame(&listeners, key, conversation, StreamAction::Cancelled, text);
        }
    }

    /// Ends a stream that has become a message.
    pub async fn sent(&self, key: &StreamKey, conversation: ConversationId, message_id: MessageId) {
        let ending = Ending::Message(message_id);
        // The stream must be over before its listeners get the end.
        let is_news = match self.state.close(key, conversation, &ending).await {
            Ok(CloseResult::Now) => true,
            Ok(CloseResult::Before) => false,
            Ok(CloseResult::Unknown) | Err(Away) => self.heard.is_open(key, conversation),
        };
        self.open.remove(key);
        if !is_news {
            return;
        }
        // A listener that misses this frame has the message in its inbox.
        let Ok(mut listeners) = self.audience.all(conversation).await else {
            return;
        };
        listeners.retain(|id| *id != key.agent.into());
        let text = ended(key, conversation, &ending);
        self.publish_frame(&listeners, key, conversation, StreamAction::Ended, text);
    }

    /// Ends the open streams of an agent in a conversation, for a user who has stopped the agent.
    /// With `in_reply_to`, a stream that answers another message goes on.
    pub async fn stop(
        &self,
        agent: AgentId,
        conversation: ConversationId,
        in_reply_to: Option<MessageId>,
    ) {
        let ending = Ending::Cancelled(Some(USER_STOPPED.to_owned()));
        let stopped = self
            .state
            .stop(agent, conversation, in_reply_to, &ending)
            .await;
        // Without Redis no stream goes on.
        for key in stopped.unwrap_or_default() {
            self.publish_cancel(&key, conversation, &ending).await;
        }
    }

    fn publish_frame(
        &self,
        listeners: &[PrincipalId],
        key: &StreamKey,
        conversation: ConversationId,
        action: StreamAction,
        text: Arc<str>,
    ) {
        let position = StreamPosition {
            agent: key.agent,
            stream: key.stream.clone(),
            conversation,
            action,
        };
        self.heard.note(&position);
        self.backplane
            .publish_ephemeral(listeners, &position.event(text), None);
    }

    /// Publishes an end to the listeners of this node only.
    fn publish_end_here(
        &self,
        listeners: &[PrincipalId],
        key: &StreamKey,
        conversation: ConversationId,
        ending: &Ending,
    ) {
        let action = match ending {
            Ending::Message(_) => StreamAction::Ended,
            Ending::Cancelled(_) => StreamAction::Cancelled,
        };
        let position = StreamPosition {
            agent: key.agent,
            stream: key.stream.clone(),
            conversation,
            action,
        };
        let event: EphemeralEvent = position.event(ended(key, conversation, ending));
        self.backplane.publish_ephemeral_here(listeners, &event);
    }
}

/// A sign that listeners hear.
enum Saying {
    Delta(u64, Box<RawValue>),
    Status(Box<RawValue>),
}

fn fits(data: &RawValue, max_bytes: usize) -> Result<()> {
    if size(data) > max_bytes {
        return Err(Code::PayloadTooLarge.into());
    }
    Ok(())
}

fn too_often(wait: Duration) -> Error {
    let limit = format!("1/{} s", STREAM_CHECKPOINT_INTERVAL.as_secs());
    Error::too_many(limit, "agent_stream_checkpoint", wait)
}

fn away(_: Away) -> Error {
    Error::unavailable("the state of streams is away")
}
