//! The `message.send` frames of one socket: one at a time, so that they keep their order.

use std::{collections::VecDeque, pin::Pin};

use serde_json::{Value, value::to_raw_value};
use uuid::Uuid;

use super::{
    Gateway,
    authenticate::AuthenticatedClient,
    close::Close,
    frames::{self, ServerFrame},
    socket::Socket,
};
use crate::{
    error::{Code, Error, Result},
    features::{
        messages::{Draft, MessageWriter, SendRequest, Sent},
        streams::{
            EphemeralEvents, key_of,
            table::{Key, StreamId},
        },
    },
    ids::{ConversationId, Principal},
    limits::{Limiter, quotas::MB, table::Limit},
};

/// Sends that may wait for their turn; then the socket is not read until one is answered.
const MAX_PENDING_SENDS: usize = 64;
/// Their bytes, likewise.
const MAX_PENDING_BYTES: usize = 2 * MB;

/// A send that is answered.
pub struct Answered {
    /// As it came.
    pub reference: Value,
    /// The stream that it ends.
    pub stream: Option<StreamId>,
    /// What became of it.
    pub outcome: Result<Sent>,
}

/// Where a send goes.
pub enum Target {
    /// Into a conversation.
    Conversation(ConversationId),
    /// Into the conversation of a stream, which ends with it; else into the one that is named.
    Stream(StreamId, Option<ConversationId>),
}

/// What is under way and what waits.
#[derive(Default)]
pub struct Sends {
    sending: Option<Pin<Box<dyn Future<Output = Answered> + Send>>>,
    pending: VecDeque<(Value, Target, String)>,
    pending_bytes: usize,
}

impl Sends {
    /// Whether more may come.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING_SENDS && self.pending_bytes < MAX_PENDING_BYTES
    }

    /// A frame that has come.
    pub fn push(&mut self, reference: Value, target: Target, body: String) {
        self.pending_bytes += body.len();
        self.pending.push_back((reference, target, body));
    }

    /// Starts the next one if none is under way.
    pub fn start_next(&mut self, gateway: &Gateway, client: &AuthenticatedClient) {
        if self.sending.is_some() {
            return;
        }
        let Some((reference, target, body)) = self.pending.pop_front() else {
            return;
        };
        self.pending_bytes -= body.len();
        let sending = Sending {
            limiter: Limiter::detached(gateway.limits.clone()),
            message_writer: gateway.message_writer.clone(),
            ephemeral: gateway.ephemeral.clone(),
            sender: client.principal,
            credential: client.credential,
        };
        self.sending = Some(Box::pin(async move {
            let outcome = sending.send(&target, &body).await;
            let stream = match target {
                Target::Conversation(_) => None,
                Target::Stream(stream, _) => Some(stream),
            };
            Answered {
                reference,
                stream,
                outcome,
            }
        }));
    }

    /// The answer of the one under way; never, if there is none. Cancel safe.
    pub async fn answered(&mut self) -> Answered {
        let Some(sending) = &mut self.sending else {
            return std::future::pending().await;
        };
        let answer = sending.await;
        self.sending = None;
        answer
    }
}

/// What one send needs of its socket and node.
struct Sending {
    limiter: Limiter,
    message_writer: MessageWriter,
    ephemeral: EphemeralEvents,
    sender: Principal,
    credential: Uuid,
}

impl Sending {
    async fn send(&self, target: &Target, body: &str) -> Result<Sent> {
        let (draft, conversation, stream) = match self.sender {
            Principal::Agent(id) => {
                let read = async { self.read(target, body, Code::WebhookPayloadTooLarge) };
                let limit = Limit::AgentConversationSend;
                self.limiter.check_during(limit, id, read).await?
            }
            Principal::User(id) => {
                let read = async { self.read(target, body, Code::MessageTooLarge) };
                let limit = Limit::UserMessageSend;
                self.limiter.check_during(limit, id, read).await?
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
            self.ephemeral
                .sent(&stream, conversation, sent.message_id)
                .await;
        }
        Ok(sent)
    }

    /// The draft, its conversation, and the stream that it ends.
    fn read(
        &self,
        target: &Target,
        body: &str,
        too_large: Code,
    ) -> Result<(Draft, ConversationId, Option<Key>)> {
        let mut draft = Draft::from_frame(body, too_large)?;
        let (stream, named) = match target {
            Target::Conversation(conversation) => return Ok((draft, *conversation, None)),
            Target::Stream(stream, named) => (key_of(self.sender, stream.clone())?, *named),
        };
        let home = self.ephemeral.streams.home(&stream);
        let conversation = home
            .map(|home| home.conversation)
            .or(named)
            .ok_or(Code::NotFound)?;
        draft.in_reply_to = draft.in_reply_to.or(home.and_then(|home| home.in_reply_to));
        Ok((draft, conversation, Some(stream)))
    }
}

/// Says that a frame was refused.
pub async fn refuse(
    socket: &mut Socket,
    reference: &Value,
    stream: Option<&StreamId>,
    error: &Error,
) -> Result<(), Option<Close>> {
    error.log();
    socket
        .say(frames::refused(reference, stream, error))
        .await?;
    Ok(())
}

/// Says what became of a send.
pub async fn answer(socket: &mut Socket, answered: &Answered) -> Result<(), Option<Close>> {
    let Answered {
        reference,
        stream,
        outcome,
    } = answered;
    let sent = match outcome {
        Ok(sent) => to_raw_value(sent).map_err(|_| Some(Close::Broken))?,
        Err(error) => {
            refuse(socket, reference, stream.as_ref(), error).await?;
            // A sender whose credential has died is not a listener any more either.
            let dead = matches!(error.code(), Code::Unauthorized | Code::AgentTokenInvalid);
            return if dead {
                Err(Some(Close::Revoked))
            } else {
                Ok(())
            };
        }
    };
    let stream_id = stream.as_ref();
    socket
        .say(
            ServerFrame::MessageSent {
                r#ref: reference,
                stream_id,
                data: &sent,
            }
            .encode(),
        )
        .await?;
    Ok(())
}
