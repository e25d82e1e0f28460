//! A message that is shown while it is written.

use std::{sync::Arc, time::Duration};

use blindpipe_e2ee::{envelope::Place, to_base64};
use blindpipe_protocol::{
    frames::{ClientFrame, MessageSent},
    ids::MessageId,
    messages::Sent,
    raw::RawJson,
    streams::{BeginStream, CancelStream, EndStream, SendDelta},
    text::StreamId,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{context::Context, outbox::Draft};
use crate::{
    Content, Error, Result,
    content::{self, text},
    session::{SealOptions, raw},
    transport::Socket,
};

/// Fewer than the server's 20 a second, so that a burst is never refused.
const DELTA_INTERVAL: Duration = Duration::from_millis(67);
/// Bytes of a delta: escaped, sealed and in base64 it stays below 16 KB.
const MAX_DELTA_BYTES: usize = 2_500;
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes are joined; the message at the end replaces everything that was shown.
pub struct MessageStream {
    context: Context,
    id: MessageId,
    to: Vec<blindpipe_protocol::ids::Principal>,
    text: String,
    /// How much of the text was shown.
    shown: usize,
    next_number: u64,
    is_open: bool,
    shown_at: Option<Instant>,
}

impl MessageStream {
    pub(super) fn new(
        context: Context,
        id: MessageId,
        to: Vec<blindpipe_protocol::ids::Principal>,
    ) -> Self {
        Self {
            context,
            id,
            to,
            text: String::new(),
            shown: 0,
            next_number: 0,
            is_open: false,
            shown_at: None,
        }
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

    /// Adds text, and shows it unless some was shown a moment ago. It never fails: what is shown
    /// meanwhile may be lost.
    pub async fn write(&mut self, part: &str) {
        self.text.push_str(part);
        let is_due = self
            .shown_at
            .is_none_or(|at| at.elapsed() >= DELTA_INTERVAL);
        if is_due {
            self.flush().await;
        }
    }

    /// Shows what was written and is not shown.
    pub async fn flush(&mut self) {
        while self.shown < self.text.len() {
            let end = piece(&self.text[self.shown..]) + self.shown;
            if let Some(at) = self.shown_at {
                tokio::time::sleep_until(at + DELTA_INTERVAL).await;
            }
            // The end carries everything, so a lost delta costs nothing but the show.
            let shown = Box::pin(self.show(self.shown..end)).await;
            self.shown = end;
            self.shown_at = Some(Instant::now());
            if shown.is_err() {
                return;
            }
        }
    }

    async fn show(&mut self, part: std::ops::Range<usize>) -> Result<()> {
        let core = self.context.core().clone();
        let socket = core.socket().ok_or(Error::lost())?;
        let conversation_id = self.context.conversation_id()?;
        let stream_id: StreamId = self.id.to_string().parse().map_err(Error::other)?;
        let append = json!({ "append": &self.text[part] });
        let n = self.next_number;
        self.next_number += 1;
        let session = &core.session;
        let nothing = Content::new();
        let draft = self.draft(&nothing)?;
        let data = if core.outbox().is_to_be_sealed(&draft).await? {
            let place = Place::Delta {
                stream_id: self.id.to_string(),
                n,
            };
            let options = SealOptions {
                answering: self
                    .context
                    .answered()
                    .map(|answered| answered.opened.epoch),
                readers: &[],
            };
            let content = append.to_string();
            let sealed = session.seal(conversation_id, &place, content.as_bytes(), options);
            Value::String(to_base64(&sealed.await?))
        } else {
            append
        };
        if !self.is_open {
            self.is_open = true;
            socket.send(&ClientFrame::StreamBegin(BeginStream {
                r#ref: Value::Null,
                stream_id: stream_id.clone(),
                conversation_id,
                in_reply_to: self.in_reply_to(),
            }));
        }
        socket.send(&ClientFrame::StreamDelta(SendDelta {
            r#ref: Value::Null,
            stream_id,
            n,
            data: raw(&data),
        }));
        Ok(())
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
        let socket = core
            .socket()
            .filter(|_| self.is_open && !outbox.is_old(&draft));
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
            })
        };
        let answer = socket.request(frame, END_TIMEOUT).await?;
        let sent = answer.parse::<MessageSent>();
        sent.map(|sent| sent.data).ok_or(Error::lost())
    }

    /// Ends without a message.
    pub fn cancel(self, reason: Option<&str>) {
        let socket = self.context.core().socket().filter(|_| self.is_open);
        if let (Some(socket), Ok(stream_id)) = (socket, self.id.to_string().parse()) {
            socket.send(&ClientFrame::StreamCancel(CancelStream {
                r#ref: Value::Null,
                stream_id,
                reason: reason.map(str::to_owned),
            }));
        }
    }
}

/// How many bytes of `rest` the next delta takes: half a character is no text.
fn piece(rest: &str) -> usize {
    rest.floor_char_boundary(MAX_DELTA_BYTES)
}
