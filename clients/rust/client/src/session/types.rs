//! Events, and messages that were opened.

use blindpipe_e2ee::{KeyId, trust::Notice};
use blindpipe_protocol::{
    cursor::Cursor,
    events::{Event, EventKind},
    ids::{ConversationId, EventId, MessageId, Principal},
    messages::{Message, Sender},
    raw::RawJson,
    time::Timestamp,
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{Content, content};

/// A durable event, the same on every transport. A newer server may have events of other names.
#[derive(Clone, Debug, Deserialize)]
pub struct InboxEvent {
    /// The event; the id of its message for `message.created`.
    pub event_id: EventId,
    /// The name of the event.
    pub event: String,
    /// The event's place in the inbox.
    pub cursor: Cursor,
    /// The event's number in the inbox.
    pub seq: i64,
    /// The conversation of the event, if it has one.
    #[serde(default)]
    pub conversation_id: Option<ConversationId>,
    /// The time of the event.
    pub created_at: Timestamp,
    /// The data of the event.
    pub data: RawJson,
}

impl InboxEvent {
    /// The event as its type; none if this crate does not know it.
    #[must_use]
    pub fn known(&self) -> Option<Event> {
        let kind = EventKind::from_name(&self.event)?;
        Event::from_parts(kind, self.data.as_str()).ok()
    }

    pub(crate) fn data<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.data.as_str()).ok()
    }

    /// The message of the event, which stands in the event's conversation.
    pub(crate) fn message(&self) -> blindpipe_e2ee::Result<Message> {
        let message = self.data::<Message>();
        let message = message.filter(|it| Some(it.conversation_id) == self.conversation_id);
        message.ok_or(blindpipe_e2ee::Error::Malformed)
    }
}

/// A sender, as far as it is proven.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct OpenedSender {
    /// The user or agent.
    pub principal: Principal,
    /// A user's device, by the server's word: the signature names a key, and no device.
    pub device_id: Option<String>,
    /// The key that signed; none in clear.
    pub key: Option<KeyId>,
    /// An accepted key has signed it.
    pub authentic: bool,
    /// The key was known before this start of the program.
    pub pinned: bool,
    /// People have compared the key.
    pub verified: bool,
    /// The server shows the sender as a member.
    pub member: bool,
}

/// A message that may be shown.
#[derive(Clone, Debug)]
pub struct OpenedMessage {
    /// The payload that would have gone in clear.
    pub content: Content,
    /// Its exact text, as it was sealed. In clear, names are sorted and there are no spaces.
    pub source: String,
    /// Whether it came encrypted.
    pub encrypted: bool,
    /// The sender.
    pub sender: OpenedSender,
    /// By the sender's clock, signed; Unix milliseconds. None in clear.
    pub sent_at: Option<u64>,
    /// The epoch of its secret; 0 in clear.
    pub epoch: u32,
    /// The hash by which an answer names this envelope; none in clear.
    pub re: Option<[u8; 32]>,
    /// Whether it was here before.
    pub is_replay: bool,
    /// The notices that stand beside it when it is shown.
    pub notices: Vec<Notice>,
}

impl OpenedMessage {
    /// The text of a text message, else "".
    #[must_use]
    pub fn text(&self) -> &str {
        content::text_of(&self.content)
    }
}

/// The id of a message from its bytes; clients choose ULIDs.
pub(crate) fn message_id(id: blindpipe_e2ee::Id) -> MessageId {
    MessageId(uuid::Uuid::from_bytes(id))
}

pub(crate) const fn principal(who: Principal) -> blindpipe_e2ee::Principal {
    match who {
        Principal::User(id) => blindpipe_e2ee::Principal::User(id.0.into_bytes()),
        Principal::Agent(id) => blindpipe_e2ee::Principal::Agent(id.0.into_bytes()),
    }
}

pub(crate) fn unix_ms(at: Timestamp) -> u64 {
    u64::try_from(at.0.timestamp_millis()).unwrap_or_default()
}

/// Whether the service says that it has deleted or purged the payload.
pub(crate) const fn is_gone(message: &Message) -> bool {
    message.payload.is_none() && (message.deleted_at.is_some() || message.purged)
}

pub(crate) fn is_sealed(message: &Message) -> bool {
    #[derive(Deserialize)]
    struct Tag {
        r#type: String,
    }
    let payload = message.payload.as_ref().map(RawJson::as_str);
    let tag = payload.and_then(|payload| serde_json::from_str::<Tag>(payload).ok());
    tag.is_some_and(|tag| tag.r#type == "encrypted")
}

/// The envelope of a payload; `clear` if it has none.
pub(crate) fn envelope_of(payload: Option<&RawJson>) -> blindpipe_e2ee::Result<Vec<u8>> {
    #[derive(Deserialize)]
    struct Sealed {
        r#type: String,
        ciphertext: Option<String>,
    }
    let payload = payload.ok_or(blindpipe_e2ee::Error::Clear)?;
    let sealed: Option<Sealed> = serde_json::from_str(payload.as_str()).ok();
    let sealed = sealed.filter(|sealed| sealed.r#type == "encrypted");
    let sealed = sealed.ok_or(blindpipe_e2ee::Error::Clear)?;
    let text = sealed.ciphertext.ok_or(blindpipe_e2ee::Error::Malformed)?;
    blindpipe_e2ee::from_base64(&text)
}

/// The payload of an envelope.
pub(crate) fn payload_of(envelope: &[u8]) -> RawJson {
    let text = blindpipe_e2ee::to_base64(envelope);
    raw(&serde_json::json!({ "type": "encrypted", "v": 1, "ciphertext": text }))
}

pub(crate) fn raw(value: &impl serde::Serialize) -> RawJson {
    RawJson::of(value).expect("JSON values are written")
}

/// A message that came in clear: nobody's word but the server's.
pub(crate) fn clear_message(message: &Message) -> OpenedMessage {
    let payload = message.payload.as_ref().map(RawJson::as_str);
    let content: Option<Content> = payload.and_then(|payload| serde_json::from_str(payload).ok());
    let content = content.unwrap_or_default();
    let source = content::encode(&content)
        .ok()
        .and_then(|it| String::from_utf8(it).ok());
    let Sender { id, device_id, .. } = message.sender.clone();
    let about = principal(id);
    OpenedMessage {
        content,
        source: source.unwrap_or_default(),
        encrypted: false,
        sender: OpenedSender {
            principal: id,
            device_id,
            key: None,
            authentic: false,
            pinned: false,
            verified: false,
            member: true,
        },
        sent_at: None,
        epoch: 0,
        re: None,
        is_replay: false,
        notices: vec![Notice {
            kind: blindpipe_e2ee::trust::NoticeKind::NotEncrypted,
            about,
            key: None,
        }],
    }
}
