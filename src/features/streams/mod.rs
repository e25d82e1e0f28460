//! Streams: deltas of an agent's answer that end in a message. No inbox holds them.
//!
//! Promises: listeners get a stream's deltas in order and never after its message. A late listener
//! gets the recent deltas with `stream.sync`, from the node that has them.

mod frames;
mod id;
mod messages;
mod replays;
mod requests;
mod table;

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::{
    frames::ServerFrame,
    messages::Sender,
    raw::RawJson,
    streams::{StreamBegin, StreamCancel, StreamDelta, StreamEnd},
};
use serde_json::value::RawValue;
use tokio::sync::{Mutex, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

pub use self::{
    frames::StreamCommand,
    id::{StreamId, StreamKey, StreamTarget, key_of},
    messages::{StreamControl, StreamPeer},
    replays::{Found, StreamReplays, without_the_past},
    table::{ReplayChunk, StreamTable},
};
use self::{
    frames::{encode, size},
    messages::{StreamAction, StreamPosition},
    replays::ReplayRequests,
    table::Silent,
};
use crate::{
    clock::Clock,
    delivery::{Backplane, ephemeral::EphemeralEvent},
    error::{Code, Result},
    features::conversations::Audience,
    ids::{ConversationId, MessageId, Principal},
    limits::quotas::MAX_DELTA_BYTES,
    supervisor,
};

/// The streams of a node. Clones share them.
#[derive(Clone)]
pub struct Streams {
    clock: Clock,
    table: StreamTable,
    audience: Audience,
    backplane: Backplane,
    /// The recent requests to other nodes.
    requests: ReplayRequests,
}

impl Streams {
    /// Answers other nodes, and cancels streams that are silent for too long, until `stop`.
    pub fn start(
        clock: &Clock,
        table: StreamTable,
        audience: Audience,
        backplane: &Backplane,
        requests: mpsc::Receiver<StreamControl>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let streams = Streams {
            clock: clock.clone(),
            table,
            audience,
            backplane: backplane.clone(),
            requests: ReplayRequests::default(),
        };
        let (tidied, until) = (streams.clone(), stop.clone());
        supervisor::spawn(tasks, "streams.tidy", move || {
            tidied.clone().run(until.clone())
        });
        let (served, until) = (streams.clone(), stop.clone());
        let requests = Arc::new(Mutex::new(requests));
        supervisor::spawn(tasks, "streams.replay", move || {
            let (streams, requests, stop) = (served.clone(), requests.clone(), until.clone());
            async move { requests::serve(&streams, &mut *requests.lock().await, &stop).await }
        });
        streams
    }

    /// The target of a stream that began here, also shortly after its end, because its message may
    /// be sent again.
    pub fn target(&self, key: &StreamKey) -> Option<StreamTarget> {
        self.table.target(key)
    }

    /// The kept deltas of a stream from delta `n` on.
    pub fn replay(&self, key: &StreamKey, n: u64) -> ReplayChunk {
        self.table.from(key, n)
    }

    /// Handles a `stream.begin`, `stream.delta` or `stream.cancel` frame.
    pub async fn frame(
        &self,
        who: Principal,
        stream: StreamId,
        action: StreamCommand,
    ) -> Result<()> {
        let key = key_of(who, stream)?;
        match action {
            StreamCommand::Begin(target) => self.begin(&key, target).await,
            StreamCommand::Delta { n, data } => self.go_on(&key, n, data).await,
            StreamCommand::Cancel { reason } => {
                let target = self.table.open(&key).ok_or(Code::NotFound)?;
                self.cancel(&key, target.conversation, reason.as_deref(), true)
                    .await;
                Ok(())
            }
        }
    }

    async fn begin(&self, key: &StreamKey, target: StreamTarget) -> Result<()> {
        let StreamTarget {
            conversation: conversation_id,
            in_reply_to,
        } = target;
        let listeners = self.listeners(key, conversation_id).await?;
        let begun_at = self.table.begin(key, target)?;
        self.backplane.publish_control(&StreamControl::Moved {
            to: self.backplane.node,
            agent: key.agent,
            stream: key.stream.clone(),
            begun_at,
        });
        let sender = sender(key);
        let text = encode(&ServerFrame::StreamBegin(StreamBegin {
            stream_id: key.stream.clone(),
            conversation_id,
            in_reply_to,
            sender,
        }));
        self.backplane.publish_ephemeral(
            &listeners,
            &event(key, conversation_id, StreamAction::Begin(begun_at), text),
            None,
        );
        Ok(())
    }

    async fn go_on(&self, key: &StreamKey, n: u64, data: Box<RawValue>) -> Result<()> {
        let StreamTarget {
            conversation: conversation_id,
            ..
        } = self.table.open(key).ok_or(Code::NotFound)?;
        if size(&data) > MAX_DELTA_BYTES {
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
        let text = encode(&ServerFrame::StreamDelta(StreamDelta {
            stream_id: key.stream.clone(),
            conversation_id,
            n,
            data: RawJson(data),
            sender,
        }));
        self.table.push(key, n, &text)?;
        self.backplane.publish_ephemeral(
            &listeners,
            &event(key, conversation_id, StreamAction::Delta(n), text),
            None,
        );
        Ok(())
    }

    async fn listeners(&self, key: &StreamKey, conversation: ConversationId) -> Result<Vec<Uuid>> {
        let who = Principal::Agent(key.agent);
        self.audience
            .of_speaker(who, conversation, Code::NotConversationMember)
            .await
    }

    /// Ends a stream without a message. A stream of another node ends only for the listeners of
    /// this node: that node is gone, or its last message was lost.
    async fn cancel(
        &self,
        key: &StreamKey,
        conversation_id: ConversationId,
        reason: Option<&str>,
        own: bool,
    ) {
        let sender = sender(key);
        let text = encode(&ServerFrame::StreamCancel(StreamCancel {
            stream_id: key.stream.clone(),
            conversation_id,
            reason: reason.map(str::to_owned),
            sender,
        }));
        if !self.table.finish(key, &text) {
            return;
        }
        // Without Postgres the recipients are unknown. They see the stream as idle.
        let Ok(listeners) = self.audience.all(conversation_id).await else {
            return;
        };
        let event = event(key, conversation_id, StreamAction::Cancelled, text);
        if own {
            self.backplane.publish_ephemeral(&listeners, &event, None);
        } else {
            self.backplane.publish_ephemeral_here(&listeners, &event);
        }
    }

    /// Ends a stream that has become a message. If the stream began on another node, that node
    /// publishes the end to the listeners.
    pub async fn sent(
        &self,
        key: &StreamKey,
        conversation_id: ConversationId,
        message_id: MessageId,
    ) {
        let sender = sender(key);
        let text = encode(&ServerFrame::StreamEnd(StreamEnd {
            stream_id: key.stream.clone(),
            conversation_id,
            message_id,
            sender,
        }));
        let own = self.table.is_own(key);
        let listeners_have_end = self.table.finish(key, &text);
        if own != Some(true) && (listeners_have_end || own.is_none()) {
            let StreamKey { agent, stream } = key.clone();
            let (by, conversation, text) = (self.backplane.node, conversation_id, text.to_string());
            // The stream must be over before its listeners get the end.
            self.backplane.publish_control(&StreamControl::Ended {
                by,
                agent,
                stream,
                conversation,
                text,
                listeners_have_end,
            });
        }
        if listeners_have_end {
            self.publish_end(key, conversation_id, text).await;
        }
    }

    /// A listener that misses this frame has the message in its inbox.
    async fn publish_end(&self, key: &StreamKey, conversation: ConversationId, text: Arc<str>) {
        let Ok(mut listeners) = self.audience.all(conversation).await else {
            return;
        };
        listeners.retain(|id| *id != key.agent.0);
        self.backplane.publish_ephemeral(
            &listeners,
            &event(key, conversation, StreamAction::Ended, text),
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
            } in self.table.tidy()
            {
                self.cancel(&key, conversation, Some("idle"), own).await;
            }
        }
    }
}

fn sender(key: &StreamKey) -> Sender {
    Sender::of(Principal::Agent(key.agent), None)
}

fn event(
    key: &StreamKey,
    conversation: ConversationId,
    action: StreamAction,
    body: Arc<str>,
) -> EphemeralEvent {
    let position = StreamPosition {
        agent: key.agent,
        stream: key.stream.clone(),
        conversation,
        action,
    };
    position.event(body)
}
