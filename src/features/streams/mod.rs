//! What is said in passing: typing, and streams of deltas that end in a message. None of it is in an inbox.

use std::{sync::Arc, time::Duration};

use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

pub(crate) mod replays;
mod requests;
pub(crate) mod table;

use self::{
    replays::ReplayRequests,
    table::{Key, Silent, StreamId, StreamTarget, Streams},
};
use crate::{
    auth::agent::Agent,
    clock::Clock,
    delivery::{
        backplane::{
            Backplane,
            messages::{ControlMessage, EphemeralEvent, StreamAction, StreamPosition},
        },
        hub::Subscription,
    },
    error::{Code, Result},
    events::Sender,
    features::conversations::audience::Audience,
    gateway::Gateway,
    http::{Data, Json},
    ids::{ConversationId, MessageId, Principal},
    limits::{
        Limiter,
        quotas::{MAX_DELTA_BYTES, TYPING_TTL},
        table::Limit,
    },
};

/// Whether somebody writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Typing {
    Started,
    Stopped,
}

/// What an agent does to its stream, but for the end, which is a send.
pub enum StreamCommand {
    /// `stream.begin {stream_id, conversation_id, in_reply_to?}`
    Begin(StreamTarget),
    /// `stream.delta {stream_id, n, data}`
    Delta {
        /// 0, 1, 2…
        n: u64,
        /// Any JSON; usually ciphertext in a string.
        data: Box<RawValue>,
    },
    /// `stream.cancel {stream_id, reason?}`
    Cancel {
        /// For those who watch.
        reason: Option<String>,
    },
}

/// A frame that sockets are sent and no inbox holds.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Frame<'a> {
    #[serde(rename = "typing")]
    Typing {
        conversation_id: ConversationId,
        sender: Sender<'a>,
        state: Typing,
        #[serde(serialize_with = "crate::clock::as_iso")]
        expires_at: DateTime<Utc>,
    },
    #[serde(rename = "stream.begin")]
    Begin {
        stream_id: &'a StreamId,
        conversation_id: ConversationId,
        #[serde(skip_serializing_if = "Option::is_none")]
        in_reply_to: Option<MessageId>,
        sender: Sender<'a>,
    },
    #[serde(rename = "stream.delta")]
    Delta {
        stream_id: &'a StreamId,
        conversation_id: ConversationId,
        n: u64,
        data: &'a RawValue,
        sender: Sender<'a>,
    },
    #[serde(rename = "stream.end")]
    End {
        stream_id: &'a StreamId,
        conversation_id: ConversationId,
        message_id: MessageId,
        sender: Sender<'a>,
    },
    #[serde(rename = "stream.cancel")]
    Cancel {
        stream_id: &'a StreamId,
        conversation_id: ConversationId,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        sender: Sender<'a>,
    },
}

impl Frame<'_> {
    fn encode(&self) -> Arc<str> {
        serde_json::to_string(self).unwrap_or_default().into()
    }
}

fn ephemeral(
    key: &Key,
    conversation: ConversationId,
    action: StreamAction,
    text: Arc<str>,
) -> EphemeralEvent {
    let part = StreamPosition {
        agent: key.agent,
        stream: key.stream.clone(),
        conversation,
        action,
    };
    EphemeralEvent {
        part: Some(Arc::new(part)),
        text,
    }
}

/// The body of a typing call.
#[derive(Deserialize)]
pub struct TypingBody {
    conversation_id: ConversationId,
    state: Typing,
}

/// What a typing call is answered.
#[derive(Serialize)]
pub struct Typed {
    conversation_id: ConversationId,
    state: Typing,
    #[serde(serialize_with = "crate::clock::as_iso")]
    expires_at: DateTime<Utc>,
}

/// `POST /agents/{agent_id}/typing`: says that an agent writes, or has stopped to.
///
/// Caller: agent. Limit: `agent_typing`, 10/s per agent, shared with its `typing` frames. Body `{conversation_id,
/// state:"started|stopped"}`. Answers 200 with [`Typed`]. Sends the members' sockets a `typing` frame; no event.
/// Errors: `NOT_FOUND`, `RELATION_REVOKED`.
pub async fn typing(
    agent: Agent,
    limiter: Limiter,
    State(gateway): State<Arc<Gateway>>,
    Json(body): Json<TypingBody>,
) -> Result<Data<Typed>> {
    limiter.check(Limit::AgentTyping, agent.id).await?;
    let TypingBody {
        conversation_id,
        state,
    } = body;
    let who = Principal::Agent(agent.id);
    let sender = Sender::of(who, None);
    let expires_at = gateway
        .ephemeral
        .tell_typing(who, sender, conversation_id, state, None)
        .await?;
    Ok(Data(Typed {
        conversation_id,
        state,
        expires_at,
    }))
}

/// A `typing` frame of a socket. It is not told to that socket.
pub async fn typing_frame(
    gateway: &Gateway,
    who: Principal,
    device: &str,
    conversation: ConversationId,
    state: Typing,
    but: &Subscription,
) -> Result<()> {
    let limiter = Limiter::detached(gateway.limits.clone());
    match who {
        Principal::Agent(id) => limiter.check(Limit::AgentTyping, id).await?,
        Principal::User(id) => {
            limiter
                .check(Limit::DefaultUser, format!("typing:{id}"))
                .await?
        }
    }
    let sender = Sender::of(who, Some(device).filter(|device| !device.is_empty()));
    gateway
        .ephemeral
        .tell_typing(who, sender, conversation, state, Some(but))
        .await?;
    Ok(())
}

/// The key of a stream of `who`; only agents have streams.
pub fn key_of(who: Principal, stream: StreamId) -> Result<Key> {
    match who {
        Principal::Agent(agent) => Ok(Key { agent, stream }),
        Principal::User(_) => Err(Code::Forbidden.into()),
    }
}

/// A string counts as its characters, anything else as it is written.
fn size(data: &RawValue) -> usize {
    serde_json::from_str::<String>(data.get()).map_or(data.get().len(), |text| text.len())
}

/// What is needed to say things in passing; clones share it.
#[derive(Clone)]
pub struct EphemeralEvents {
    pub clock: Clock,
    pub streams: Streams,
    pub audience: Audience,
    pub backplane: Backplane,
    /// What was asked of other nodes.
    pub asks: ReplayRequests,
}

impl EphemeralEvents {
    /// Over this node's backplane; what is silent for too long is cancelled until `stop`.
    pub fn start(
        clock: &Clock,
        backplane: &Backplane,
        requests: mpsc::Receiver<ControlMessage>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let ephemeral = EphemeralEvents {
            clock: clock.clone(),
            streams: backplane.streams.clone(),
            audience: backplane.audience.clone(),
            backplane: backplane.clone(),
            asks: ReplayRequests::default(),
        };
        tasks.spawn(ephemeral.clone().run(stop.clone()));
        tasks.spawn(requests::serve(ephemeral.clone(), requests, stop.clone()));
        ephemeral
    }

    async fn tell_typing(
        &self,
        who: Principal,
        sender: Sender<'_>,
        conversation_id: ConversationId,
        state: Typing,
        but: Option<&Subscription>,
    ) -> Result<DateTime<Utc>> {
        let listeners = self
            .audience
            .of_speaker(who, conversation_id, Code::NotFound)
            .await?;
        let now = self.clock.now();
        let expires_at = match state {
            Typing::Started => now + TYPING_TTL,
            Typing::Stopped => now,
        };
        let text = Frame::Typing {
            conversation_id,
            sender,
            state,
            expires_at,
        }
        .encode();
        self.backplane
            .publish_ephemeral(&listeners, &EphemeralEvent { part: None, text }, but);
        Ok(expires_at)
    }

    /// A `stream.begin`, `stream.delta` or `stream.cancel` frame.
    pub async fn stream_frame(
        &self,
        who: Principal,
        stream: StreamId,
        action: StreamCommand,
    ) -> Result<()> {
        let key = key_of(who, stream)?;
        match action {
            StreamCommand::Begin(home) => self.begin(&key, home).await,
            StreamCommand::Delta { n, data } => self.go_on(&key, n, &data).await,
            StreamCommand::Cancel { reason } => {
                let home = self.streams.open(&key).ok_or(Code::NotFound)?;
                self.cancel(&key, home.conversation, reason.as_deref(), true)
                    .await;
                Ok(())
            }
        }
    }

    async fn begin(&self, key: &Key, home: StreamTarget) -> Result<()> {
        let StreamTarget {
            conversation: conversation_id,
            in_reply_to,
        } = home;
        let listeners = self.listeners(key, conversation_id).await?;
        self.streams.begin(key, home)?;
        self.backplane.claim_stream(key.agent, key.stream.clone());
        let sender = sender(key);
        let text = Frame::Begin {
            stream_id: &key.stream,
            conversation_id,
            in_reply_to,
            sender,
        }
        .encode();
        self.backplane.publish_ephemeral(
            &listeners,
            &ephemeral(key, conversation_id, StreamAction::Begin, text),
            None,
        );
        Ok(())
    }

    async fn go_on(&self, key: &Key, n: u64, data: &RawValue) -> Result<()> {
        let StreamTarget {
            conversation: conversation_id,
            ..
        } = self.streams.open(key).ok_or(Code::NotFound)?;
        if size(data) > MAX_DELTA_BYTES {
            return Err(Code::PayloadTooLarge.into());
        }
        let listeners = match self.listeners(key, conversation_id).await {
            Err(error) if error.code() != Code::ServiceUnavailable => {
                self.cancel(key, conversation_id, Some("not_member"), true)
                    .await;
                return Err(error);
            }
            other => other?,
        };
        let sender = sender(key);
        let text = Frame::Delta {
            stream_id: &key.stream,
            conversation_id,
            n,
            data,
            sender,
        }
        .encode();
        self.streams.push(key, n, &text)?;
        self.backplane.publish_ephemeral(
            &listeners,
            &ephemeral(key, conversation_id, StreamAction::Delta(n), text),
            None,
        );
        Ok(())
    }

    async fn listeners(&self, key: &Key, conversation: ConversationId) -> Result<Vec<Uuid>> {
        let who = Principal::Agent(key.agent);
        self.audience
            .of_speaker(who, conversation, Code::NotConversationMember)
            .await
    }

    /// Ends a stream without a message. One that began elsewhere is ended for those who listen here only: its own node
    /// is gone, or its last word was lost.
    async fn cancel(
        &self,
        key: &Key,
        conversation_id: ConversationId,
        reason: Option<&str>,
        own: bool,
    ) {
        let sender = sender(key);
        let text = Frame::Cancel {
            stream_id: &key.stream,
            conversation_id,
            reason,
            sender,
        }
        .encode();
        if !self.streams.finish(key, &text) {
            return;
        }
        // Without Postgres nobody knows who may hear it; whoever watches sees it as idle.
        let Ok(listeners) = self.audience.all(conversation_id).await else {
            return;
        };
        let ephemeral = ephemeral(key, conversation_id, StreamAction::Cancelled, text);
        if own {
            self.backplane
                .publish_ephemeral(&listeners, &ephemeral, None);
        } else {
            self.backplane.whisper_here(&listeners, &ephemeral);
        }
    }

    /// The stream has become a message. If it began elsewhere it is over there, too; whoever of the two knew it tells
    /// the listeners.
    pub async fn sent(&self, key: &Key, conversation_id: ConversationId, message_id: MessageId) {
        let sender = sender(key);
        let text = Frame::End {
            stream_id: &key.stream,
            conversation_id,
            message_id,
            sender,
        }
        .encode();
        let own = self.streams.is_own(key);
        let told = self.streams.finish(key, &text);
        if own != Some(true) && (told || own.is_none()) {
            let Key { agent, stream } = key.clone();
            let (by, conversation, text) = (self.backplane.node, conversation_id, text.to_string());
            // Before the listeners hear it: it is over when they know it.
            self.backplane.pass(&ControlMessage::StreamEnded {
                by,
                agent,
                stream,
                conversation,
                text,
                told,
            });
        }
        if told {
            self.tell_end(key, conversation_id, text).await;
        }
    }

    /// Whoever misses this has the message in its inbox.
    pub(super) async fn tell_end(&self, key: &Key, conversation: ConversationId, text: Arc<str>) {
        let Ok(mut listeners) = self.audience.all(conversation).await else {
            return;
        };
        listeners.retain(|id| *id != key.agent.0);
        self.backplane.publish_ephemeral(
            &listeners,
            &ephemeral(key, conversation, StreamAction::Ended, text),
            None,
        );
    }

    async fn run(self, stop: CancellationToken) {
        loop {
            let next = self.clock.now() + Duration::from_secs(1);
            tokio::select! {
                () = self.clock.sleep_until(next) => {}
                () = stop.cancelled() => return,
            }
            for Silent {
                key,
                conversation,
                own,
            } in self.streams.tidy()
            {
                self.cancel(&key, conversation, Some("idle"), own).await;
            }
        }
    }
}

fn sender(key: &Key) -> Sender<'static> {
    Sender::of(Principal::Agent(key.agent), None)
}
