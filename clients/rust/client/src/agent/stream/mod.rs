//! A message that is shown while it is written.

mod show;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use blindpipe_protocol::{
    frames::{ClientFrame, MessageSent},
    ids::{MessageId, Principal},
    messages::Sent,
    raw::RawJson,
    streams::{CancelStream, EndStream},
    text::StreamId,
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;

use self::show::{Live, Show};
use super::{
    context::{Context, SendOptions},
    outbox::Draft,
};
use crate::{
    Content, Error, Result,
    content::{self, text},
    transport::Socket,
};

const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of the stream that shows a status before there is any text. It becomes no message.
const STATUS_NAME: &str = ":status";

/// Ends the status of a handler, however the handler ends.
pub(super) struct StatusGuard(pub(super) Context);

impl Drop for StatusGuard {
    fn drop(&mut self) {
        self.0.end_status();
    }
}

/// The streams of a handler.
#[derive(Default)]
pub(super) struct Streams {
    /// The newest one, if it is still there.
    live: Mutex<Weak<Live>>,
    /// The stream that shows a status before there is any text.
    status: Mutex<Option<MessageStream>>,
}

impl Context {
    /// A message that is shown while it is written; its end makes it one durable message.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for an event without a conversation.
    pub fn stream(&self) -> Result<MessageStream> {
        self.stream_with(SendOptions::default())
    }

    /// A message that is shown while it is written.
    ///
    /// # Errors
    ///
    /// As [`Self::stream`].
    pub fn stream_with(&self, options: SendOptions) -> Result<MessageStream> {
        self.conversation_id()?;
        let id = self.next_id(options.key)?;
        self.end_status();
        let stream = MessageStream::new(self.clone(), id, options.to);
        *self.streams().live.lock() = Arc::downgrade(stream.live());
        Ok(stream)
    }

    /// Says what the agent does meanwhile, such as a search: beside the stream, or before it. It
    /// ends with the next text, with a reply, or with the handler.
    ///
    /// # Errors
    ///
    /// As [`Self::stream`].
    pub fn status(&self, text: &str) -> Result<()> {
        let live = self.streams().live.lock().upgrade();
        if live.is_some_and(|live| live.say_status(text)) {
            return Ok(());
        }
        let key = Some(STATUS_NAME.to_owned());
        let stream = self.stream_with(SendOptions {
            key,
            to: Vec::new(),
        })?;
        stream.status(text);
        *self.streams().status.lock() = Some(stream);
        Ok(())
    }

    pub(super) fn end_status(&self) {
        let stream = self.streams().status.lock().take();
        if let Some(stream) = stream {
            stream.cancel(None);
        }
    }
}

/// Writes are joined; the message at the end replaces everything that was shown. It goes on over
/// other connections and nodes.
pub struct MessageStream {
    context: Context,
    id: MessageId,
    to: Vec<Principal>,
    text: String,
    live: Arc<Live>,
    /// Shows it, as long as this is there.
    _showing: JoinSet<()>,
}

impl MessageStream {
    pub(super) fn new(context: Context, id: MessageId, to: Vec<Principal>) -> Self {
        let live = Arc::new(Live::default());
        let mut showing = JoinSet::new();
        showing.spawn(Show::new(context.clone(), id, to.clone(), live.clone()).run());
        Self {
            context,
            id,
            to,
            text: String::new(),
            live,
            _showing: showing,
        }
    }

    const fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// The `client_message_id` of the message that ends this stream.
    #[must_use]
    pub const fn id(&self) -> MessageId {
        self.id
    }

    /// The text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Adds text, which is shown soon. It never fails: what is shown meanwhile may be lost.
    pub async fn write(&mut self, part: &str) {
        self.text.push_str(part);
        self.live.write(part);
        // A handler that only writes lets the text be shown, too.
        tokio::task::yield_now().await;
    }

    /// Says what the agent does meanwhile, such as a search. The next text ends it.
    pub fn status(&self, text: &str) {
        self.live.say_status(text);
    }

    /// Waits until all that was written is shown, or there is no connection.
    pub async fn flush(&mut self) {
        self.live.shown(|| self.context.core().socket()).await;
    }

    fn in_reply_to(&self) -> Option<MessageId> {
        let answered = self.context.answered();
        answered.map(|answered| answered.message.message_id)
    }

    /// Ends as a durable, signed message: the text that was written.
    ///
    /// # Errors
    ///
    /// As [`Context::reply`].
    pub async fn end(self) -> Result<Sent> {
        let content = text(self.text.as_str());
        self.end_with(content).await
    }

    /// Ends as a durable, signed message with another content.
    ///
    /// # Errors
    ///
    /// As [`Context::reply`].
    pub async fn end_with(self, content: impl Into<content::Body>) -> Result<Sent> {
        let content = content.into().0;
        let core = self.context.core().clone();
        let draft = self.draft(&content)?;
        let outbox = core.outbox();
        let is_open = self.live.end();
        let socket = core.socket().filter(|_| is_open && !outbox.is_old(&draft));
        let Some(socket) = socket else {
            return outbox.send(&draft).await;
        };
        let payload = outbox.payload(&draft).await?;
        match self.end_by_frame(&socket, &draft, &payload).await {
            // Unknown, refused or lost: the same bytes go by REST, where one id is one message.
            Err(_) => outbox.send_payload(&draft, payload).await,
            sent => sent,
        }
    }

    fn draft<'a>(&'a self, content: &'a Content) -> Result<Draft<'a>> {
        Ok(Draft {
            conversation_id: self.context.conversation_id()?,
            content,
            client_message_id: self.id,
            answered: self.context.answered(),
            caused_at: self.context.event().created_at,
            to: &self.to,
            refs: &[],
        })
    }

    async fn end_by_frame(
        &self,
        socket: &Arc<Socket>,
        draft: &Draft<'_>,
        payload: &RawJson,
    ) -> Result<Sent> {
        let stream_id: StreamId = self.id.to_string().parse().map_err(Error::other)?;
        let frame = |r#ref| {
            ClientFrame::StreamEnd(EndStream {
                r#ref,
                stream_id,
                conversation_id: Some(draft.conversation_id),
                payload: payload.clone(),
                client_message_id: Some(draft.client_message_id),
                idempotency_key: None,
                in_reply_to: self.in_reply_to(),
                recipients: (!self.to.is_empty()).then(|| self.to.clone()),
                refs: None,
            })
        };
        let answer = socket.request(frame, END_TIMEOUT).await?;
        let sent = answer.parse::<MessageSent>();
        sent.map(|sent| sent.data).ok_or(Error::lost())
    }

    /// Ends without a message.
    pub fn cancel(self, reason: Option<&str>) {
        let is_open = self.live.end();
        let socket = self.context.core().socket().filter(|_| is_open);
        if let (Some(socket), Ok(stream_id)) = (socket, self.id.to_string().parse()) {
            socket.send(&ClientFrame::StreamCancel(CancelStream {
                r#ref: Value::Null,
                stream_id,
                reason: reason.map(str::to_owned),
            }));
        }
    }
}
