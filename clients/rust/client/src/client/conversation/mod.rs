//! A conversation as a person sees it.

mod group;
mod history;

use blindpipe_e2ee::{envelope::Place, room::Writing, search, to_base64};
use blindpipe_protocol::{
    conversations::Conversation as Info,
    ids::{AgentId, ConversationId, MessageId, Principal},
    messages::{Message, SendMessage, Sent},
    raw::RawJson,
    search::{SearchHit, SearchToken},
};
use serde_json::{Value, json};

pub use self::history::HistoryPage;
use super::Client;
use crate::{
    Content, Error, FileDetails, NewFile, OpenedMessage, Result,
    content::{self, Body, NewChange},
    files,
    session::{SealOptions, is_gone, payload_of, raw},
    transport::{Call, new_id},
};

/// More about a send.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// A client that repeats a send across processes keeps this id.
    pub client_message_id: Option<MessageId>,
    /// The message that this one answers.
    pub in_reply_to: Option<Received>,
    /// The members that it names. `addressed` agents among them can read it too.
    pub to: Vec<Principal>,
    /// The messages that it concerns, in clear.
    pub refs: Vec<MessageId>,
    /// The program's own keyed hashes of words, in place of those of
    /// [`super::ClientBuilder::searchable`].
    pub search_tokens: Vec<SearchToken>,
}

/// A message, opened if it opens. Nothing of what does not open is shown as said by anybody.
#[derive(Clone, Debug)]
pub struct Received {
    /// The message as the server stores it.
    pub message: Message,
    /// The message opened, or why it does not open.
    pub opened: std::result::Result<OpenedMessage, blindpipe_e2ee::Error>,
}

impl Received {
    /// Whether its payload is gone. Then it is shown as deleted.
    #[must_use]
    pub const fn is_deleted(&self) -> bool {
        is_gone(&self.message)
    }

    /// The text of a text message that opened, else "".
    #[must_use]
    pub fn text(&self) -> &str {
        self.opened.as_ref().map_or("", OpenedMessage::text)
    }
}

/// A conversation of a person.
#[derive(Clone)]
pub struct Conversation {
    pub(super) client: Client,
    pub(super) id: ConversationId,
}

impl Conversation {
    /// Its id.
    #[must_use]
    pub const fn id(&self) -> ConversationId {
        self.id
    }

    /// The conversation with its members.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn info(&self) -> Result<Info> {
        let session = self.client.session()?;
        let entry = session.load(self.id).await?;
        let info = entry.info.clone();
        drop(entry);
        self.client.save_if_dirty();
        info.ok_or(Error::Usage("the conversation was not read"))
    }

    /// The person's visible choice to write in clear to somebody who does not speak `bp1`.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn choose_clear(&self) -> Result<()> {
        self.client.choose_clear(self.id)
    }

    /// Sends a text or a content.
    ///
    /// # Errors
    ///
    /// [`Error::KeyUnavailable`] where somebody does not speak `bp1` and the person has not chosen
    /// clear text; every refusal of the service.
    pub async fn send(&self, content: impl Into<Body>) -> Result<Sent> {
        self.send_with(content, SendOptions::default()).await
    }

    /// Sends a text or a content. Sends of a conversation are stored in the order in which they
    /// were called.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn send_with(&self, content: impl Into<Body>, options: SendOptions) -> Result<Sent> {
        let content = content.into().0;
        let turn = self.client.turn(self.id);
        let _turn = turn.lock().await;
        Box::pin(self.send_now(content, &options)).await
    }

    async fn send_now(&self, content: Content, options: &SendOptions) -> Result<Sent> {
        let session = self.client.session()?;
        let id = options.client_message_id;
        let id = id.unwrap_or_else(|| MessageId(new_id(&session.clock)));
        let answered = options.in_reply_to.as_ref();
        let in_reply_to = answered.map(|answered| answered.message.message_id);
        let words = self.client.is_searchable().then(|| content.clone());
        let payload = self.payload(content, id, options).await?;
        let mut search_tokens = options.search_tokens.clone();
        if let Some(content) = words.filter(|_| search_tokens.is_empty()) {
            search_tokens = session.message_tokens(self.id, &content, &payload).await?;
        }
        let body = SendMessage {
            client_message_id: Some(id),
            in_reply_to,
            recipients: (!options.to.is_empty()).then(|| options.to.clone()),
            refs: (!options.refs.is_empty()).then(|| options.refs.clone()),
            search_tokens: (!search_tokens.is_empty()).then_some(search_tokens),
            ..SendMessage::new(payload)
        };
        let call = Call::post(format!("/conversations/{}/messages", self.id), &body);
        let sent: Sent = session.http.data(call.repeatable()).await?;
        session.sent(&sent, &body.payload).await;
        Ok(sent)
    }

    /// The messages whose text has all these words, the newest first, at most a page of each epoch.
    /// They were sent by clients that are [`super::ClientBuilder::searchable`], in the newest eight
    /// epochs whose secrets this device holds. Each epoch counts as a search.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] without a word, or with more than 16; every refusal of the service.
    pub async fn search(&self, text: &str) -> Result<Vec<SearchHit>> {
        let words = search::words(text);
        if words.is_empty() || words.len() > search::MAX_SEARCH_TOKENS {
            return Err(Error::Usage("a search takes 1 to 16 words"));
        }
        let session = self.client.session()?;
        let mut found = Vec::new();
        for tokens in session.epoch_tokens(self.id, &words).await? {
            let (hits, _) = self.client.search_tokens(&tokens, None).await?;
            found.extend(hits);
        }
        Ok(found)
    }

    pub(super) async fn payload(
        &self,
        content: Content,
        id: MessageId,
        options: &SendOptions,
    ) -> Result<RawJson> {
        let session = self.client.session()?;
        let answered = options.in_reply_to.as_ref();
        let opened = answered.and_then(|answered| answered.opened.as_ref().ok());
        let answering = opened
            .filter(|opened| opened.encrypted)
            .map(|opened| opened.epoch);
        let entry = session.load(self.id).await?;
        let clear_chosen = self.client.has_chosen_clear(self.id);
        let writing = entry.room.writing(&session.trust.lock(), clear_chosen);
        match writing {
            Writing::Clear => return Ok(raw(&content)),
            Writing::AskPerson => {
                let why = "somebody here does not speak bp1; choose_clear() writes in clear";
                return Err(Error::KeyUnavailable(why));
            }
            Writing::Encrypted => {}
        }
        drop(entry);
        let mut content = Box::pin(session.fitting(self.id, content)).await?;
        self.client.rotate_if_due(self.id, answering).await?;
        if let Some(re) = opened.and_then(|opened| opened.re) {
            content.insert("re".to_owned(), to_base64(&re).into());
        }
        let place = Place::Message {
            client_message_id: id.0.into_bytes(),
            in_reply_to: answered.map(|it| it.message.message_id.0.into_bytes()),
        };
        let options = SealOptions {
            answering,
            readers: &options.to,
        };
        let bytes = content::encode(&content)?;
        let sealed = session.seal(self.id, &place, &bytes, options).await?;
        // Epochs and pins are stored before anything is said under them: after a restart, nothing
        // goes back behind them.
        self.client.save_if_dirty();
        Ok(payload_of(&sealed))
    }

    /// Answers a message.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn reply(&self, message: &Received, content: impl Into<Body>) -> Result<Sent> {
        let options = SendOptions {
            in_reply_to: Some(message.clone()),
            ..SendOptions::default()
        };
        self.send_with(content, options).await
    }

    /// Replaces the content of a text or a file that this person has sent.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for the message of somebody else; else as [`Self::send`].
    pub async fn edit(&self, message: &Received, content: impl Into<Body>) -> Result<Sent> {
        if !self.is_own(message)? {
            return Err(Error::Usage("only the author edits a message"));
        }
        self.change(message, NewChange::Edit(content.into().0))
            .await
    }

    /// Takes a message back: its author says so, and the service forgets the payload. An owner or
    /// an admin of a group can delete the messages of others.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn delete(&self, message: &Received) -> Result<()> {
        if message.opened.is_ok() && self.is_own(message)? {
            self.change(message, NewChange::Delete).await?;
        }
        let id = message.message.message_id;
        let call = Call::delete(format!("/conversations/{}/messages/{id}", self.id));
        let http = self.client.http();
        http.data::<Value>(call.repeatable()).await.map(drop)
    }

    /// Puts an emoji beside a message, or takes one's own away.
    ///
    /// # Errors
    ///
    /// [`Error::Decrypt`] for a message that does not open; else as [`Self::send`].
    pub async fn react(&self, message: &Received, emoji: &str, remove: bool) -> Result<Sent> {
        let is_removed = remove;
        let change = NewChange::Reaction { emoji, is_removed };
        self.change(message, change).await
    }

    fn is_own(&self, message: &Received) -> Result<bool> {
        Ok(message.message.sender.id == Principal::User(self.client.user_id()?))
    }

    async fn change(&self, message: &Received, change: NewChange<'_>) -> Result<Sent> {
        let opened = message.opened.as_ref();
        let opened = opened.map_err(|reason| Error::Decrypt(*reason))?;
        let id = message.message.message_id;
        let options = SendOptions {
            refs: vec![id],
            ..SendOptions::default()
        };
        self.send_with(change.of(id, opened)?, options).await
    }

    /// Answers an agent's question with one of its choices; one without choices in words.
    ///
    /// # Errors
    ///
    /// As [`Self::send`], and as [`super::ApprovalRequest::answer`].
    pub async fn answer(&self, question: Received, answer: &str) -> Result<()> {
        let opened = question.opened.as_ref();
        let content = &opened.map_err(|reason| Error::Decrypt(*reason))?.content;
        let choices = content.get("choices").and_then(Value::as_array);
        let in_words = choices.is_none_or(Vec::is_empty);
        if content.get("type").and_then(Value::as_str) == Some("approval") {
            let id = question.message.message_id;
            let request = Box::pin(self.client.approval(id)).await?;
            return Box::pin(request.answer_either(answer, in_words))
                .await
                .map(drop);
        }
        let name = if in_words { "text" } else { "choice" };
        let mut content = Content::new();
        content.insert("type".to_owned(), "answer".into());
        content.insert(name.to_owned(), answer.into());
        let options = SendOptions {
            in_reply_to: Some(question),
            ..SendOptions::default()
        };
        self.send_with(content, options).await.map(drop)
    }

    /// Uploads a file and sends the message that names it.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn send_file(&self, file: NewFile) -> Result<Sent> {
        self.send_file_with(file, FileDetails::default()).await
    }

    /// As [`Self::send_file`], with what readers show beside the name.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn send_file_with(&self, file: NewFile, details: FileDetails) -> Result<Sent> {
        let http = self.client.http();
        let mut content = Box::pin(files::upload(http, "/files", self.id, file)).await?;
        details.add_to(&mut content);
        self.send(content).await
    }

    /// The bytes of a file message.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if the content is no file, [`Error::Decrypt`] if the bytes are others.
    pub async fn download(&self, content: &Content) -> Result<Vec<u8>> {
        files::download(self.client.http(), content).await
    }

    /// Stops what agents do here: all of it, or an agent's, or the answer to a message. Answers the
    /// number of agents that were told.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn stop(
        &self,
        agent_id: Option<AgentId>,
        in_reply_to: Option<MessageId>,
    ) -> Result<u64> {
        #[derive(serde::Deserialize)]
        struct Stopped {
            stopped: u64,
        }
        let mut body = serde_json::Map::new();
        body.extend(agent_id.map(|id| ("agent_id".to_owned(), json!(id))));
        body.extend(in_reply_to.map(|id| ("in_reply_to".to_owned(), json!(id))));
        let call = Call::post(format!("/conversations/{}/stop", self.id), &body);
        let told: Stopped = self.client.http().data(call.repeatable()).await?;
        Ok(told.stopped)
    }

    /// Makes a fresh secret at once. One that is merely old goes on for ten minutes if the server
    /// takes no other.
    ///
    /// # Errors
    ///
    /// Every refusal of the service; [`Error::KeyUnavailable`] if it takes no fresh secret.
    pub async fn rotate(&self) -> Result<()> {
        Box::pin(self.client.rotate(self.id)).await
    }
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Conversation({})", json!(self.id))
    }
}
