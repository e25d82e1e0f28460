//! The frames of a socket that no inbox stores: `typing`, and those of streams but `stream.end` and
//! `stream.sync`. They run in turn beside the session, so a slow Postgres or Redis holds up no
//! ack, no heartbeat and no event. Sends wait for the notices before them, so a stream's message
//! follows its deltas.
//!
//! A notice that waits for nothing runs at once, so a queue forms only behind a slow store. At its
//! bound the socket is not read, and silence is ignored. Refusing frames there would lose deltas of
//! a healthy client. A task per frame would let deltas overtake each other, and a queue per stream
//! would buy little, since all of them ask the same Postgres.
//!
//! A session that ends finishes its notices for up to a second, unless its credential was revoked:
//! others wait for the end of typing and of streams. `auth.renew` is no notice, because it decides
//! which later frames are allowed. A later frame may be answered before an earlier notice is
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
pub enum Notice {
    /// `typing`
    Typing(ConversationId, TypingState),
    /// A frame of a stream
    Stream(StreamId, StreamCommand),
}

/// A frame that was refused.
pub struct RefusedNotice {
    /// The opaque value of the frame.
    pub reference: Value,
    /// The stream of the frame.
    pub stream: Option<StreamId>,
    /// The reason.
    pub error: Error,
}

/// A notice that waits for its turn.
struct Pending {
    reference: Value,
    notice: Notice,
    bytes: usize,
    /// The bytes of a large frame, held until its turn is over.
    permit: Option<BytePermit>,
}

/// The notice in progress, and those that wait.
#[derive(Default)]
pub struct Notices {
    running: Option<Pin<Box<dyn Future<Output = Option<RefusedNotice>> + Send>>>,
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    pushed: u64,
    finished: u64,
}

impl Notices {
    /// Whether another frame may wait. Otherwise the socket is not read until one is done.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_EPHEMERAL_FRAMES && self.pending_bytes < MAX_EPHEMERAL_BYTES
    }

    /// The number of notices so far, as a position that sends wait for.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The number of notices that are over.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Queues a frame.
    pub fn push(&mut self, reference: Value, notice: Notice, permit: Option<BytePermit>) {
        let bytes = notice.bytes();
        self.pushed += 1;
        self.pending_bytes += bytes;
        self.pending.push_back(Pending {
            reference,
            notice,
            bytes,
            permit,
        });
    }

    /// Starts the next notice if none is in progress.
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
            notice,
            bytes,
            permit,
        }) = self.pending.pop_front()
        else {
            return;
        };
        self.pending_bytes -= bytes;
        let speaker = Speaker {
            limits: gateway.limits.clone(),
            typing: gateway.typing.clone(),
            streams: gateway.streams.clone(),
            principal: client.principal,
            device_id: client.reader.device_id.clone(),
            subscription: subscription.clone(),
        };
        self.running = Some(Box::pin(async move {
            let stream = match &notice {
                Notice::Stream(stream, _) => Some(stream.clone()),
                Notice::Typing(..) => None,
            };
            let outcome = speaker.say(notice).await;
            drop(permit);
            outcome.err().map(|error| RefusedNotice {
                reference,
                stream,
                error,
            })
        }));
    }

    /// Waits until the notice in progress is over; for ever, if there is none. Cancel safe.
    pub async fn next_finished(&mut self) -> Option<RefusedNotice> {
        let Some(running) = &mut self.running else {
            return std::future::pending().await;
        };
        let refused = running.await;
        self.running = None;
        self.finished += 1;
        refused
    }

    /// The outcome of the notice in progress, if it is over without a wait.
    pub fn finished_now(&mut self) -> Option<Option<RefusedNotice>> {
        self.next_finished().now_or_never()
    }

    /// Whether no notice is in progress and none waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.pending.is_empty()
    }
}

impl Notice {
    /// The bytes that it holds while it waits.
    pub fn bytes(&self) -> usize {
        match self {
            Notice::Stream(
                _,
                StreamCommand::Delta { data, .. }
                | StreamCommand::Checkpoint { data, .. }
                | StreamCommand::Status { data },
            ) => data.get().len(),
            Notice::Stream(..) | Notice::Typing(..) => 0,
        }
    }
}

/// The handles that a notice needs of its socket and node.
struct Speaker {
    limits: Limits,
    typing: Typing,
    streams: Streams,
    principal: Principal,
    device_id: String,
    subscription: Arc<Subscription>,
}

impl Speaker {
    async fn say(&self, notice: Notice) -> Result<()> {
        let limiter = Limiter::detached(self.limits.clone());
        match notice {
            Notice::Typing(conversation, state) => {
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
            Notice::Stream(stream, action) => {
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
