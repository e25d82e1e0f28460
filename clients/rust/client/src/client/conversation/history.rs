//! The reading half of a conversation: pages of its history, and the mark of what was read.

use blindpipe_protocol::{
    conversations::{MarkRead, ReadMark},
    ids::MessageId,
    messages::{self, Message},
};

use super::{Conversation, Received};
use crate::{
    Error, OpenedMessage, Result,
    session::{clear_message, is_sealed},
    transport::Call,
};

/// A page of the history, for [`crate::client::timeline()`].
#[derive(Clone, Debug)]
pub struct HistoryPage {
    /// The newest first.
    pub messages: Vec<Received>,
    /// The messages that refer to one of them, by rising `seq`.
    pub refs: Vec<Received>,
    /// There are more of them.
    pub refs_truncated: bool,
    /// The cursor of the next page.
    pub next_cursor: Option<MessageId>,
}

impl Conversation {
    /// A page of the history, newest first, from `before` on. A reply to a message that was not
    /// read yet stands under the notice `no_quote`.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn history(&self, before: Option<MessageId>) -> Result<Vec<Received>> {
        let call = Call::get(format!("/conversations/{}/messages", self.id))
            .query("limit", Some(100))
            .query("cursor", before);
        let page = self.client.http().page::<Message>(call).await?;
        self.open_page(page.data).await
    }

    /// A page of the history from `before` on, with the messages that refer to one of it.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn history_page(&self, before: Option<MessageId>) -> Result<HistoryPage> {
        let call = Call::get(format!("/conversations/{}/messages", self.id))
            .query("limit", Some(100))
            .query("include", Some("refs"))
            .query("cursor", before);
        let page: messages::HistoryPage = self.client.http().json(call).await?;
        let messages = self.open_page(page.data).await?;
        let mut refs = Vec::new();
        for message in page.refs.into_iter().flatten() {
            refs.push(self.open(message, false).await?);
        }
        Ok(HistoryPage {
            messages,
            refs,
            refs_truncated: page.refs_truncated == Some(true),
            next_cursor: page.next_cursor,
        })
    }

    /// A message is known before the replies to it.
    async fn open_page(&self, page: Vec<Message>) -> Result<Vec<Received>> {
        let mut received = Vec::with_capacity(page.len());
        for message in page.into_iter().rev() {
            received.push(self.open(message, false).await?);
        }
        received.reverse();
        Ok(received)
    }

    /// Opens a message. `live`: from the inbox, not from the history.
    ///
    /// # Errors
    ///
    /// A read that failed; what does not open is no error here.
    pub async fn open(&self, message: Message, live: bool) -> Result<Received> {
        let opened = if is_sealed(&message) {
            self.client.session()?.open_message(&message, live).await
        } else {
            self.open_clear(&message).await
        };
        let opened = match opened {
            Ok(opened) => Ok(opened),
            Err(Error::Decrypt(reason)) => Err(reason),
            Err(error) => return Err(error),
        };
        self.client.save_if_dirty();
        Ok(Received { message, opened })
    }

    /// In a conversation that was encrypted, clear text can be the server's own.
    async fn open_clear(&self, message: &Message) -> Result<OpenedMessage> {
        let session = self.client.session()?;
        let chosen = self.client.has_chosen_clear(self.id);
        if chosen && !session.is_encrypted(self.id).await? {
            return Ok(clear_message(message));
        }
        Err(blindpipe_e2ee::Error::Clear.into())
    }

    /// Moves the read mark to this message.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn mark_read(&self, message_id: MessageId) -> Result<ReadMark> {
        let path = format!("/conversations/{}/read", self.id);
        self.client
            .http()
            .data(Call::post(path, &MarkRead { message_id }))
            .await
    }
}
