//! The context of a handler: an event, and the ways to answer it.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU32, Ordering},
};

use blindpipe_e2ee::ids::Origin;
use blindpipe_protocol::{
    frames::ClientFrame,
    ids::{ConversationId, MessageId, Principal},
    messages::{Message, Sent},
    typing::{SendTyping, TypingState},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    approvals::ApprovalResult,
    core::Core,
    handlers::{Opened, open},
    outbox::{Answered, Draft},
    questions::Answer,
    stream::Streams,
    tool_calls::{CallResult, ToolCall},
    turns::{SteerMessage, Turn},
};
use crate::{
    Content, Error, FileDetails, InboxEvent, NewFile, OpenedSender, Result,
    content::{Body, NewChange, text_of},
    files,
    session::message_id,
};

/// More about a send.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// A name of this send within the event, instead of its number.
    pub key: Option<String>,
    /// The members that it names. `addressed` agents among them can read it too.
    pub to: Vec<Principal>,
}

pub(super) struct Given {
    pub(super) core: Arc<Core>,
    pub(super) event: InboxEvent,
    pub(super) answered: Option<Answered>,
    pub(super) origin: Origin,
    pub(super) replayed: bool,
    pub(super) answer: Option<Answer>,
    pub(super) approval: Option<ApprovalResult>,
    pub(super) turn: Arc<Turn>,
    pub(super) stopping: CancellationToken,
}

struct Inner {
    given: Given,
    next_name: AtomicU32,
    streams: Streams,
}

/// An event, and the ways to answer it. Run again, a handler sends nothing twice.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

impl Context {
    pub(super) fn new(given: Given) -> Self {
        Self(Arc::new(Inner {
            given,
            next_name: AtomicU32::default(),
            streams: Streams::default(),
        }))
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.0.given.core
    }

    pub(super) fn streams(&self) -> &Streams {
        &self.0.streams
    }

    pub(super) fn answered(&self) -> Option<&Answered> {
        self.0.given.answered.as_ref()
    }

    /// The event.
    #[must_use]
    pub fn event(&self) -> &InboxEvent {
        &self.0.given.event
    }

    /// The message as the server stores it; none for other events.
    #[must_use]
    pub fn message(&self) -> Option<&Message> {
        self.answered().map(|answered| &answered.message)
    }

    /// The opened content; empty for other events.
    #[must_use]
    pub fn content(&self) -> &Content {
        static NONE: LazyLock<Content> = LazyLock::new(Content::new);
        self.answered()
            .map_or_else(|| &*NONE, |answered| &answered.opened.content)
    }

    /// The text of a text message, else "".
    #[must_use]
    pub fn text(&self) -> &str {
        text_of(self.content())
    }

    /// Whether the message came encrypted.
    #[must_use]
    pub fn encrypted(&self) -> bool {
        self.answered()
            .is_some_and(|answered| answered.opened.encrypted)
    }

    /// The sender, as far as it is proven; none for other events.
    #[must_use]
    pub fn sender(&self) -> Option<&OpenedSender> {
        self.answered().map(|answered| &answered.opened.sender)
    }

    /// By the sender's clock, signed; Unix milliseconds.
    #[must_use]
    pub fn sent_at(&self) -> Option<u64> {
        self.answered().and_then(|answered| answered.opened.sent_at)
    }

    /// Whether it was in the inbox before this connection, or a webhook tries it again.
    #[must_use]
    pub fn replayed(&self) -> bool {
        self.0.given.replayed
    }

    /// For other systems' idempotency, in hex: a message can come again.
    #[must_use]
    pub fn key(&self) -> String {
        crate::session::hex(&self.0.given.origin.key())
    }

    /// Cancelled when the handler is to end.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.0.given.stopping
    }

    /// Cancelled when a person has stopped this. The event is not handled again, however it ends.
    #[must_use]
    pub fn stopped(&self) -> &CancellationToken {
        &self.0.given.turn.stopped
    }

    /// The messages that have arrived here since the handler began, or since the last call. What is
    /// taken here is handled by this handler, and by no other.
    ///
    /// # Errors
    ///
    /// A read that failed.
    pub async fn steer(&self) -> Result<Vec<SteerMessage>> {
        let (turn, mut found) = (&self.0.given.turn, Vec::new());
        while let Some(event) = turn.next_arrived() {
            match open(self.core(), &event).await {
                Ok(Opened::Message(answered)) => found.push(turn.take(event, *answered)),
                // Its own turn tells that it does not open.
                Ok(_) | Err(Error::Decrypt(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// In a handler of [`super::AgentBuilder::on_answer`]: the answer.
    #[must_use]
    pub fn answer(&self) -> Option<&Answer> {
        self.0.given.answer.as_ref()
    }

    /// In a handler of [`super::AgentBuilder::on_decision`]: the decision.
    #[must_use]
    pub fn decision(&self) -> Option<&ApprovalResult> {
        self.0.given.approval.as_ref()
    }

    /// The conversation of the event.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for an event without one.
    pub fn conversation_id(&self) -> Result<ConversationId> {
        let of_message = self.message().map(|message| message.conversation_id);
        let id = of_message.or(self.event().conversation_id);
        id.ok_or(Error::Usage("this event has no conversation"))
    }

    /// The id of the send with this name; without one the next, in the order of the sends.
    pub(super) fn next_id(&self, key: Option<String>) -> Result<MessageId> {
        let next = || self.0.next_name.fetch_add(1, Ordering::Relaxed).to_string();
        self.id_of(&key.unwrap_or_else(next))
    }

    fn id_of(&self, name: &str) -> Result<MessageId> {
        let agent = self.core().agent_id.0.into_bytes();
        Ok(message_id(self.0.given.origin.reply(agent, name)?))
    }

    /// Answers in this conversation.
    ///
    /// # Errors
    ///
    /// [`Error::KeyUnavailable`] where nobody has rotated yet, [`Error::IdConflict`], and every
    /// refusal of the service.
    pub async fn reply(&self, content: impl Into<Body>) -> Result<Sent> {
        self.reply_with(content, SendOptions::default()).await
    }

    /// Answers in this conversation.
    ///
    /// # Errors
    ///
    /// As [`Self::reply`].
    pub async fn reply_with(&self, content: impl Into<Body>, options: SendOptions) -> Result<Sent> {
        let conversation_id = self.conversation_id()?;
        self.send(conversation_id, content, options).await
    }

    /// Sends to any conversation of the agent.
    ///
    /// # Errors
    ///
    /// As [`Self::reply`].
    pub async fn send(
        &self,
        conversation_id: ConversationId,
        content: impl Into<Body>,
        options: SendOptions,
    ) -> Result<Sent> {
        let content = content.into().0;
        let client_message_id = self.next_id(options.key)?;
        if self.event().conversation_id != Some(conversation_id) {
            self.core().look_up(Some(conversation_id))?;
        }
        let is_here = |answered: &&Answered| answered.message.conversation_id == conversation_id;
        let draft = Draft {
            conversation_id,
            content: &content,
            client_message_id,
            answered: self.answered().filter(is_here),
            caused_at: self.event().created_at,
            to: &options.to,
            refs: &[],
        };
        let sent = Box::pin(self.core().outbox().send(&draft)).await?;
        self.end_status();
        Ok(sent)
    }

    /// Replaces the content of a text or a file that this agent has sent.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if there is no such message; else as [`Self::reply`].
    pub async fn edit(&self, sent: &Sent, content: impl Into<Body>) -> Result<Sent> {
        let (content, id) = (content.into().0, self.next_id(None)?);
        let own = Box::pin(self.core().outbox().own(sent)).await?;
        let own = own.ok_or(Error::Usage("this agent has sent no such message"))?;
        self.change(&own, NewChange::Edit(content), id).await
    }

    /// Takes a message of this agent back: it says so, and the service forgets the payload.
    ///
    /// # Errors
    ///
    /// As [`Self::reply`].
    pub async fn delete(&self, sent: &Sent) -> Result<()> {
        let id = self.next_id(None)?;
        // Without it, an earlier run has deleted it.
        if let Some(own) = Box::pin(self.core().outbox().own(sent)).await? {
            self.change(&own, NewChange::Delete, id).await?;
        }
        self.core().outbox().delete(sent).await
    }

    /// Puts an emoji beside this message, or takes the agent's own away.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for an event without a message; else as [`Self::reply`].
    pub async fn react(&self, emoji: &str, remove: bool) -> Result<Sent> {
        let answered = self.answered();
        let answered = answered.ok_or(Error::Usage("this event brings no message"))?;
        let is_removed = remove;
        let change = NewChange::Reaction { emoji, is_removed };
        self.change(answered, change, self.next_id(None)?).await
    }

    async fn change(&self, of: &Answered, change: NewChange<'_>, id: MessageId) -> Result<Sent> {
        let message_id = of.message.message_id;
        let content = change.of(message_id, &of.opened)?;
        let draft = Draft {
            conversation_id: of.message.conversation_id,
            content: &content,
            client_message_id: id,
            answered: Some(of),
            caused_at: self.event().created_at,
            to: &[],
            refs: &[message_id],
        };
        Box::pin(self.core().outbox().send(&draft)).await
    }

    /// Tells the members that the agent writes, or has stopped. It needs a socket.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for an event without a conversation.
    pub fn typing(&self, state: TypingState) -> Result<()> {
        let conversation_id = self.conversation_id()?;
        if let Some(socket) = self.core().socket() {
            socket.send(&ClientFrame::Typing(SendTyping {
                r#ref: Value::Null,
                conversation_id,
                state,
            }));
        }
        Ok(())
    }

    /// Asks a person's device to run a tool: it executes and signs, or nobody does.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if nobody is named and none was spoken to; every refusal of the service.
    pub async fn call(&self, mut call: ToolCall) -> Result<CallResult> {
        let conversation_id = self.conversation_id()?;
        let request_id = self.next_id(call.key.take())?.to_string();
        let user = call.user.or_else(|| self.spoken_to());
        let user = user.ok_or(Error::Usage("name the user who is asked"))?;
        let stopping = self.stopping();
        let called = self
            .core()
            .call(conversation_id, user, request_id, call, stopping);
        Box::pin(called).await
    }

    /// The bytes of this message's file.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if the message is no file, [`Error::Decrypt`] if the bytes are others.
    pub async fn file(&self) -> Result<Vec<u8>> {
        files::download(&self.core().http, self.content()).await
    }

    /// Uploads a file and sends the message that names it.
    ///
    /// # Errors
    ///
    /// As [`Self::reply`].
    pub async fn send_file(&self, file: NewFile) -> Result<Sent> {
        self.send_file_with(file, FileDetails::default()).await
    }

    /// As [`Self::send_file`], with what readers show beside the name.
    ///
    /// # Errors
    ///
    /// As [`Self::reply`].
    pub async fn send_file_with(&self, file: NewFile, details: FileDetails) -> Result<Sent> {
        let core = self.core();
        let base = format!("/agents/{}/files", core.agent_id);
        let conversation_id = self.conversation_id()?;
        let upload = files::upload(&core.http, &base, conversation_id, file);
        let mut content = Box::pin(upload).await?;
        details.add_to(&mut content);
        self.reply(content).await
    }

    /// Whether a first reply is in the history already: for handlers that cost money.
    ///
    /// # Errors
    ///
    /// The history may be out of reach.
    pub async fn is_answered(&self) -> Result<bool> {
        let draft = Draft {
            conversation_id: self.conversation_id()?,
            content: &Content::new(),
            client_message_id: self.id_of("0")?,
            answered: self.answered(),
            caused_at: self.event().created_at,
            to: &[],
            refs: &[],
        };
        let found = Box::pin(self.core().outbox().find(&draft)).await?;
        Ok(found.is_some())
    }
}
