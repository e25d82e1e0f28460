//! Sends and reads of an agent outside of a handler: of a program that speaks when it wants to.

use blindpipe_protocol::{
    ids::{ConversationId, MessageId},
    messages::{Message, Sent},
};

use super::{Agent, outbox::Draft};
use crate::{
    Error, Result,
    client::Received,
    content::Body,
    session::is_sealed,
    transport::{Call, new_id},
};

impl Agent {
    /// Sends to a conversation of the agent. An id makes a repeat the same message; a new one
    /// without it.
    ///
    /// # Errors
    ///
    /// [`Error::KeyUnavailable`] where nobody has rotated yet, [`Error::IdConflict`], and every
    /// refusal of the service.
    pub async fn send(
        &self,
        conversation_id: ConversationId,
        content: impl Into<Body>,
        id: Option<MessageId>,
    ) -> Result<Sent> {
        let core = self.start().await?;
        core.look_up(Some(conversation_id))?;
        let content = content.into().0;
        let draft = Draft {
            conversation_id,
            content: &content,
            client_message_id: id.unwrap_or_else(|| MessageId(new_id(self.clock()))),
            answered: None,
            caused_at: self.clock().timestamp(),
            to: &[],
            refs: &[],
        };
        let sent = Box::pin(core.outbox().send(&draft)).await?;
        core.save().await;
        Ok(sent)
    }

    /// A page of a conversation, newest first, from `before` on: each message opened, or why it does
    /// not open.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn history(
        &self,
        conversation_id: ConversationId,
        before: Option<MessageId>,
    ) -> Result<Vec<Received>> {
        let core = self.start().await?;
        let path = format!(
            "/agents/{}/conversations/{conversation_id}/messages",
            self.id()
        );
        let call = Call::get(path).query("cursor", before);
        let page = core.http.page::<Message>(call).await?;
        let mut received = Vec::with_capacity(page.data.len());
        for message in page.data {
            let opened = if is_sealed(&message) {
                core.session.open_message(&message, false).await
            } else {
                let clear = core.session.open_either(&message, core.clear_allowed).await;
                clear.and_then(|opened| opened.ok_or(blindpipe_e2ee::Error::Clear.into()))
            };
            let opened = match opened {
                Ok(opened) => Ok(opened),
                Err(Error::Decrypt(reason)) => Err(reason),
                Err(error) => return Err(error),
            };
            received.push(Received { message, opened });
        }
        core.save().await;
        Ok(received)
    }
}
