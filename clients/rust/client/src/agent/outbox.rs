//! Sends of an agent: exactly one message per id, whatever dies in between.

use blindpipe_e2ee::{envelope::Place, to_base64};
use blindpipe_protocol::{
    errors::Code,
    ids::{AgentId, ConversationId, MessageId, Principal, PrincipalKind},
    messages::{Message, SendMessage, Sender, Sent},
    raw::RawJson,
    time::Timestamp,
};
use serde::Deserialize;

use crate::{
    ApiError, Content, Error, OpenedMessage, Result, content,
    session::{SealOptions, Session, clear_message, is_sealed, payload_of, raw, unix_ms},
    transport::{Call, Http},
};

/// The server remembers ids for 24 hours; this leaves room for clocks and queues.
const SAFE_REPEAT_MS: u64 = 20 * 3_600_000;
const HISTORY_PAGE: u32 = 100;
/// Anybody may answer a message that is no question, so the search for one is short.
const MAX_QUESTION_PAGES: u32 = 20;
/// The service's clock and that of an event may differ by so much.
const CLOCK_MARGIN_MS: u64 = 5 * 60_000;

/// The message that a send answers. A search for an earlier run begins there.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) message: Message,
    pub(crate) opened: OpenedMessage,
}

/// A message that an agent sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft<'a> {
    pub(super) conversation_id: ConversationId,
    pub(super) content: &'a Content,
    pub(super) client_message_id: MessageId,
    pub(super) answered: Option<&'a Answered>,
    /// The time of the event that caused this.
    pub(super) caused_at: Timestamp,
    /// The members that it names.
    pub(super) to: &'a [Principal],
    /// The messages that a change is about. It is no reply to what is answered.
    pub(super) refs: &'a [MessageId],
}

impl Draft<'_> {
    /// The message that this is a reply to.
    fn replied_to(&self) -> Option<&Answered> {
        self.answered.filter(|_| self.refs.is_empty())
    }

    fn in_reply_to(&self) -> Option<MessageId> {
        self.replied_to()
            .map(|answered| answered.message.message_id)
    }
}

pub(super) struct Outbox<'a> {
    pub(super) http: &'a Http,
    pub(super) agent_id: AgentId,
    pub(super) session: &'a Session,
    pub(super) clear_allowed: bool,
}

impl Outbox<'_> {
    fn path(&self, conversation_id: ConversationId) -> String {
        let agent_id = self.agent_id;
        format!("/agents/{agent_id}/conversations/{conversation_id}/messages")
    }

    /// The payload of a draft, sealed where the conversation is encrypted.
    pub(super) async fn payload(&self, draft: &Draft<'_>) -> Result<RawJson> {
        if !self.is_to_be_sealed(draft).await? {
            return Ok(raw(draft.content));
        }
        let (id, content) = (draft.conversation_id, draft.content.clone());
        let mut content = Box::pin(self.session.fitting(id, content)).await?;
        if let Some(re) = draft.replied_to().and_then(|answered| answered.opened.re) {
            content.insert("re".to_owned(), to_base64(&re).into());
        }
        let place = Place::Message {
            client_message_id: draft.client_message_id.0.into_bytes(),
            in_reply_to: draft.in_reply_to().map(|id| id.0.into_bytes()),
        };
        let options = SealOptions {
            answering: draft.answered.map(|answered| answered.opened.epoch),
            readers: draft.to,
        };
        let bytes = content::encode(&content)?;
        let sealed = self
            .session
            .seal(draft.conversation_id, &place, &bytes, options);
        Ok(payload_of(&sealed.await?))
    }

    /// Whether a draft is sealed; else it may go in clear.
    pub(super) async fn is_to_be_sealed(&self, draft: &Draft<'_>) -> Result<bool> {
        let came_clear = draft
            .answered
            .is_some_and(|answered| !answered.opened.encrypted);
        // An agent without a key begins in clear, too.
        let clear = self.clear_allowed && (came_clear || !self.session.has_keys());
        let id = draft.conversation_id;
        self.session.is_to_be_sealed(id, clear).await
    }

    /// Whether the server may have forgotten what an earlier run sent.
    pub(super) fn is_old(&self, draft: &Draft<'_>) -> bool {
        let now = self.session.clock.now_ms();
        now.saturating_sub(unix_ms(draft.caused_at)) >= SAFE_REPEAT_MS
    }

    pub(super) async fn send(&self, draft: &Draft<'_>) -> Result<Sent> {
        // After a day the server has forgotten the id, so the history must say.
        if self.is_old(draft)
            && let Some(earlier) = self.find(draft).await?
        {
            return Ok(earlier);
        }
        let payload = self.payload(draft).await?;
        self.send_payload(draft, payload).await
    }

    /// Sends bytes that are sealed already; they are the same at every try.
    pub(super) async fn send_payload(&self, draft: &Draft<'_>, payload: RawJson) -> Result<Sent> {
        let body = SendMessage {
            client_message_id: Some(draft.client_message_id),
            in_reply_to: draft.in_reply_to(),
            recipients: (!draft.to.is_empty()).then(|| draft.to.to_vec()),
            refs: (!draft.refs.is_empty()).then(|| draft.refs.to_vec()),
            ..SendMessage::new(payload)
        };
        let call = Call::post(self.path(draft.conversation_id), &body).repeatable();
        match self.http.data(call).await {
            Err(Error::Api(error)) if error.code == Some(Code::IdempotencyConflict) => {
                self.earlier_run(draft, &error).await
            }
            sent => sent,
        }
    }

    /// An earlier run sent it: a sealed repeat always differs, and so may a model's answer.
    pub(super) async fn earlier_run(&self, draft: &Draft<'_>, conflict: &ApiError) -> Result<Sent> {
        let earlier = match self.message_of(draft, conflict) {
            Some(message) if self.is_own(&message).await? => Some(sent_of(&message)),
            Some(_) => None,
            None => self.find(draft).await?,
        };
        earlier.ok_or(Error::IdConflict)
    }

    /// The earlier message, as the refusal carries it.
    fn message_of(&self, draft: &Draft<'_>, conflict: &ApiError) -> Option<Message> {
        #[derive(Deserialize)]
        struct Earlier {
            message_id: MessageId,
            seq: i64,
        }
        let params = serde_json::Value::Object(conflict.params.clone());
        let payload = raw(params
            .get("payload")
            .filter(|payload| payload.is_object())?);
        let Earlier { message_id, seq } = serde_json::from_value(params).ok()?;
        Some(Message {
            message_id,
            conversation_id: draft.conversation_id,
            seq,
            sender: Sender {
                r#type: PrincipalKind::Agent,
                id: Principal::Agent(self.agent_id),
                device_id: None,
            },
            payload: Some(payload),
            purged: false,
            deleted_at: None,
            deleted_by: None,
            recipients: None,
            client_message_id: Some(draft.client_message_id),
            in_reply_to: draft.in_reply_to(),
            refs: None,
            hop: 0,
            created_at: draft.caused_at,
        })
    }

    /// This agent's message with this id, after the message that it answers, or after what caused it.
    /// The search ends where the message cannot be, and nowhere before: else it were sent twice.
    pub(super) async fn find(&self, draft: &Draft<'_>) -> Result<Option<Sent>> {
        let mut cursor = draft.in_reply_to().map(|id| id.to_string());
        let (direction, since) = match cursor {
            Some(_) => ("forward", 0),
            None => ("backward", unix_ms(draft.caused_at)),
        };
        let since = since.saturating_sub(CLOCK_MARGIN_MS);
        loop {
            let page = self
                .history(draft.conversation_id, direction, cursor)
                .await?;
            for message in &page.0 {
                if unix_ms(message.created_at) < since {
                    return Ok(None);
                }
                let is_it = message.client_message_id == Some(draft.client_message_id);
                if is_it && self.is_own(message).await? {
                    return Ok(Some(sent_of(message)));
                }
            }
            cursor = page.1;
            if cursor.is_none() {
                return Ok(None);
            }
        }
    }

    async fn history(
        &self,
        of: ConversationId,
        direction: &str,
        cursor: Option<String>,
    ) -> Result<(Vec<Message>, Option<String>)> {
        let call = Call::get(self.path(of))
            .query("direction", Some(direction))
            .query("limit", Some(HISTORY_PAGE))
            .query("cursor", cursor);
        let page = self.http.page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    /// A message that this agent has sent, opened; none if it is not there, or deleted.
    pub(super) async fn own(&self, sent: &Sent) -> Result<Option<Answered>> {
        let (of, id) = (sent.conversation_id, sent.message_id);
        let mut found = self.session.messages_since(of, sent.seq, &[id]).await?;
        let message = found
            .remove(&id)
            .filter(|message| message.payload.is_some());
        let Some(message) = message else {
            return Ok(None);
        };
        let opened = self.open_own(&message).await?;
        Ok(opened.map(|opened| Answered { message, opened }))
    }

    /// Has the service forget the payload of a message of this agent.
    pub(super) async fn delete(&self, sent: &Sent) -> Result<()> {
        let path = format!("{}/{}", self.path(sent.conversation_id), sent.message_id);
        let call = Call::delete(path).repeatable();
        self.http.data::<serde_json::Value>(call).await.map(drop)
    }

    /// This agent's question, opened; none if the history does not have it.
    pub(super) async fn question(&self, answer: &Message) -> Result<Option<OpenedMessage>> {
        let mut cursor = Some(answer.message_id.to_string());
        for _ in 0..MAX_QUESTION_PAGES {
            let page = self
                .history(answer.conversation_id, "backward", cursor)
                .await?;
            let is_it = |message: &&Message| Some(message.message_id) == answer.in_reply_to;
            if let Some(message) = page.0.iter().find(is_it) {
                return self.open_own(message).await;
            }
            cursor = page.1;
            if cursor.is_none() {
                break;
            }
        }
        Ok(None)
    }

    pub(super) async fn open_own(&self, message: &Message) -> Result<Option<OpenedMessage>> {
        if !self.is_own(message).await? {
            return Ok(None);
        }
        if !is_sealed(message) {
            return Ok(Some(clear_message(message)));
        }
        self.session.open_message(message, false).await.map(Some)
    }

    async fn is_own(&self, message: &Message) -> Result<bool> {
        if message.sender.id != Principal::Agent(self.agent_id) {
            return Ok(false);
        }
        match self.session.open_message(message, false).await {
            Ok(_) => Ok(true),
            // An agent without a key, or in a conversation in clear, has only the server's word.
            Err(Error::Decrypt(blindpipe_e2ee::Error::Clear)) => {
                let id = message.conversation_id;
                Ok(!(self.session.has_keys() && self.session.is_encrypted(id).await?))
            }
            Err(Error::Decrypt(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn sent_of(message: &Message) -> Sent {
    Sent {
        message_id: message.message_id,
        conversation_id: message.conversation_id,
        seq: message.seq,
        created_at: message.created_at,
        client_message_id: message.client_message_id,
        duplicate: true,
    }
}
