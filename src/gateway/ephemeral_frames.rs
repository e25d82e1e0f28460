//! The ephemeral frames of a socket, which no inbox stores: `typing`, and those of streams but
//! `stream.end` and `stream.sync`. They run in turn beside the session, so a slow Postgres or Redis
//! holds up no ack, no heartbeat and no event. Commands wait for the frames before them, so a
//! stream's message follows its deltas.
//!
//! A frame that waits for nothing runs at once, so a queue forms only behind a slow store. At its
//! bound the socket is not read, and silence is ignored. Refusing frames there would lose deltas of
//! a healthy client. A task per frame would let deltas overtake each other, and a queue per stream
//! would buy little, since all of them ask the same Postgres.
//!
//! A session that ends finishes its frames for up to a second, unless its credential was revoked:
//! others wait for the end of typing and of streams. `auth.renew` is no such frame, because it
//! decides which later frames are allowed. A later frame may be answered before an earlier one is
//! refused; the interface orders answers by `ref`.

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use blindpipe_protocol::typing::TypingState;
use futures_util::FutureExt;
use serde_json::Value;

use super::{Gateway, authenticate::AuthenticatedClient};
use crate::{
    delivery::Subscription,
    error::{Error, Result},
    features::{
        streams::{StreamCommand, StreamId, Streams},
        typing::Typing,
    },
    ids::{ConversationId, Principal},
    limits::{
        Limiter, Limits,
        buffers::BytePermit,
        quotas::{MAX_EPHEMERAL_BYTES, MAX_EPHEMERAL_FRAMES},
        table::Limit,
    },
};

/// The content of a frame.
pub enum EphemeralFrame {
    /// `typing`
    Typing(ConversationId, TypingState),
    /// A frame of a stream
    Stream(StreamId, StreamCommand),
}

/// A frame that was refused.
pub struct RefusedFrame {
    /// The opaque value of the frame.
    pub reference: Value,
    /// The stream of the frame.
    pub stream: Option<StreamId>,
    /// The reason.
    pub error: Error,
}

/// An ephemeral frame that waits for its turn.
struct Pending {
    reference: Value,
    frame: EphemeralFrame,
    bytes: usize,
    /// The bytes of a large frame, held until its turn is over.
    permit: Option<BytePermit>,
}

/// The frame in progress, and those that wait.
#[derive(Default)]
pub struct EphemeralFrames {
    running: Option<Pin<Box<dyn Future<Output = Option<RefusedFrame>> + Send>>>,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    pushed: u64,
    finished: u64,
}

impl EphemeralFrames {
    /// Whether another frame may wait. Otherwise the socket is not read until one is done.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_EPHEMERAL_FRAMES && self.pending_bytes < MAX_EPHEMERAL_BYTES
    }

    /// The number of frames so far, as a position that sends wait for.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The number of frames that are over.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Queues a frame.
    pub fn push(&mut self, reference: Value, frame: EphemeralFrame, permit: Option<BytePermit>) {
        let bytes = frame.bytes();
        self.pushed += 1;
        self.pending_bytes += bytes;
        self.pending.push_back(Pending {
            reference,
            frame,
            bytes,
            permit,
        });
    }

    /// Starts the next frame if none is in progress.
    pub fn start_next(
        &mut self,
        gateway: &Gateway,
        client: &AuthenticatedClient,
        subscription: &Arc<Subscription>,
    ) {
        if self.running.is_some() {
            return;
        }
        let Some(Pending {
            reference,
            frame,
            bytes,
            permit,
        }) = self.pending.pop_front()
        else {
            return;
        };
        self.pending_bytes -= bytes;
        let sender = FrameSender {
            limits: gateway.limits.clone(),
            typing: gateway.typing.clone(),
            streams: gateway.streams.clone(),
            principal: client.principal,
            device_id: client.reader.device_id.clone(),
            subscription: subscription.clone(),
        };
        self.running = Some(Box::pin(async move {
            let stream = match &frame {
                EphemeralFrame::Stream(stream, _) => Some(stream.clone()),
                EphemeralFrame::Typing(..) => None,
            };
            let outcome = sender.say(frame).await;
            drop(permit);
            outcome.err().map(|error| RefusedFrame {
                reference,
                stream,
                error,
            })
        }));
    }

    /// Waits until the frame in progress is over; for ever, if there is none. Cancel safe.
    pub async fn next_finished(&mut self) -> Option<RefusedFrame> {
        let Some(running) = &mut self.running else {
            return std::future::pending().await;
        };
        let refused = running.await;
        self.running = None;
        self.finished += 1;
        refused
    }

    /// The outcome of the frame in progress, if it is over without a wait.
    pub fn finished_now(&mut self) -> Option<Option<RefusedFrame>> {
        self.next_finished().now_or_never()
    }

    /// Whether no such frame is in progress and none waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.pending.is_empty()
    }
}

impl EphemeralFrame {
    /// The bytes that it holds while it waits.
    pub fn bytes(&self) -> usize {
        match self {
            EphemeralFrame::Stream(
                _,
                StreamCommand::Delta { data, .. }
                | StreamCommand::Checkpoint { data, .. }
                | StreamCommand::Status { data },
            ) => data.get().len(),
            EphemeralFrame::Stream(..) | EphemeralFrame::Typing(..) => 0,
        }
    }
}

/// The handles that a frame needs of its socket and node.
struct FrameSender {
    limits: Limits,
    typing: Typing,
    streams: Streams,
    principal: Principal,
    device_id: String,
    subscription: Arc<Subscription>,
}

impl FrameSender {
    async fn say(&self, frame: EphemeralFrame) -> Result<()> {
        let limiter = Limiter::detached(self.limits.clone());
        match frame {
            EphemeralFrame::Typing(conversation, state) => {
                self.typing
                    .frame(
                        &limiter,
                        self.principal,
                        &self.device_id,
                        conversation,
                        state,
                        &self.subscription,
                    )
                    .await
            }
            EphemeralFrame::Stream(stream, action) => {
                // The begin of a stream asks Postgres who listens, so it is charged first.
                if let (StreamCommand::Begin(..), Principal::Agent(agent)) =
                    (&action, self.principal)
                {
                    limiter.check(Limit::StreamBegin, agent).await?;
                }
                self.streams.frame(self.principal, stream, action).await
            }
        }
    }
}
