//! THE EVENTS: their encoding, which all transports share. The list of events and their payloads is
//! `crates/protocol/src/events.rs`.
//!
//! Durable events stand in inboxes and look the same on all transports. Each reader gets its own
//! cursor and number in front. The tail behind them is encoded once and shared by all readers of
//! the event.

use std::sync::Arc;

pub use blindpipe_protocol::events::{Event, EventKind};
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;

use crate::{
    clock::iso,
    cursor::Cursor,
    ids::{ConversationId, EventId, MessageId, Principal},
};

/// The part of an event that all its readers share: the inside of a JSON object, without braces.
pub type EncodedEvent = Arc<str>;

/// Bytes of a message and its event around the payload, about; more only cost a larger allocation.
const MESSAGE_FIELDS_BYTES: usize = 768;

/// Encodes the shared part; `data` is JSON.
pub fn encoded(
    id: EventId,
    kind: &str,
    conversation: Option<ConversationId>,
    at: DateTime<Utc>,
    data: &str,
) -> EncodedEvent {
    [&before_data(id, kind, conversation, at), data]
        .concat()
        .into()
}

/// The shared part up to the value of `data`.
fn before_data(
    id: EventId,
    kind: &str,
    conversation: Option<ConversationId>,
    at: DateTime<Utc>,
) -> String {
    let at = iso(at);
    match conversation {
        Some(conversation) => format!(
            r#""event_id":"{id}","event":"{kind}","conversation_id":"{conversation}","created_at":"{at}","data":"#
        ),
        None => format!(r#""event_id":"{id}","event":"{kind}","created_at":"{at}","data":"#),
    }
}

/// The name of an encoded event.
pub fn kind_of(encoded: &str) -> &str {
    // The shared part begins with `"event_id":"…","event":"<kind>"`.
    encoded.split('"').nth(7).unwrap_or_default()
}

/// The conversation of an encoded event, if it has any.
pub fn conversation_of(encoded: &str) -> Option<ConversationId> {
    // `"conversation_id":"<id>"` follows the name directly.
    let mut parts = encoded.split('"').skip(9);
    match parts.next() {
        Some("conversation_id") => parts.nth(1)?.parse().ok(),
        _ => None,
    }
}

/// The id of an encoded event.
pub fn id_of(encoded: &str) -> Option<EventId> {
    encoded.split('"').nth(3)?.parse().ok()
}

/// An encoded event in two parts: all before its data, and its data.
pub fn split_data(encoded: &str) -> Option<(&str, &str)> {
    // The values before the data are ids, a name and a time, so none of them contains the key.
    let at = encoded.find(DATA_KEY)? + DATA_KEY.len();
    encoded.split_at_checked(at)
}

const DATA_KEY: &str = r#""data":"#;

/// Whether this event removes a principal from an audience.
pub fn shrinks_audience(encoded: &str) -> bool {
    let kind = kind_of(encoded);
    [EventKind::MemberRemoved, EventKind::RelationRevoked]
        .iter()
        .any(|one| kind == one.name())
}

/// The event object, in the form of a poll and a webhook.
pub fn object(cursor: Cursor, encoded: &str) -> String {
    format!(r#"{{"cursor":"{cursor}","seq":{},{encoded}}}"#, cursor.seq)
}

/// The text before an event's tail in its frame.
pub fn frame_prefix(cursor: Cursor) -> String {
    format!(
        r#"{{"type":"event","cursor":"{cursor}","seq":{},"#,
        cursor.seq
    )
}

/// The text after an event's tail in its frame.
pub const FRAME_SUFFIX: &str = "}";

/// A message in the form that all its readers see.
pub struct Message<'a> {
    pub id: MessageId,
    pub conversation: ConversationId,
    /// The message's number in its conversation.
    pub seq: i64,
    pub sender: Principal,
    /// The device of the sender; none for an agent.
    pub device_id: Option<&'a str>,
    /// A JSON object as it was sent; empty after a purge or a deletion.
    pub payload: &'a str,
    /// Its deletion, if it was deleted.
    pub deletion: Option<Deletion<'a>>,
    /// The principals that the sender addressed.
    pub recipients: Option<&'a [String]>,
    /// The id that the sender chose.
    pub client_message_id: Option<MessageId>,
    pub in_reply_to: Option<MessageId>,
    /// The messages that it concerns.
    pub refs: Option<&'a [MessageId]>,
    /// The number of agents' answers since a user spoke.
    pub hop: i16,
    pub created_at: DateTime<Utc>,
}

/// The deletion of a message.
#[derive(Clone, Copy, Debug)]
pub struct Deletion<'a> {
    pub at: DateTime<Utc>,
    /// The wire id of the principal that deleted it.
    pub by: &'a str,
}

impl<'a> Deletion<'a> {
    /// The deletion in a row of `message`.
    pub fn from_row(row: &'a Row) -> Option<Self> {
        let at: Option<DateTime<Utc>> = row.get("deleted_at");
        at.zip(row.get("deleted_by"))
            .map(|(at, by)| Deletion { at, by })
    }
}

/// The sender in the form that all readers see.
#[derive(Serialize)]
struct Sender<'a> {
    r#type: &'static str,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_id: Option<&'a str>,
}

impl<'a> Sender<'a> {
    fn of(who: Principal, device_id: Option<&'a str>) -> Self {
        Sender {
            r#type: who.kind().as_str(),
            id: who.wire_id(),
            device_id,
        }
    }
}

#[derive(Serialize)]
struct MessageData<'a> {
    message_id: MessageId,
    conversation_id: ConversationId,
    seq: i64,
    sender: Sender<'a>,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    purged: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recipients: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_message_id: Option<MessageId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_reply_to: Option<MessageId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refs: Option<&'a [MessageId]>,
    hop: i16,
    #[serde(serialize_with = "crate::clock::as_iso")]
    created_at: DateTime<Utc>,
}

impl Message<'_> {
    /// The message as JSON.
    pub fn json(&self) -> String {
        self.json_after("")
    }

    /// The `message.created` event, which carries the message's own id.
    pub fn encoded(&self) -> EncodedEvent {
        let (id, kind) = (EventId(self.id.0), EventKind::MessageCreated.name());
        let before = before_data(id, kind, Some(self.conversation), self.created_at);
        self.json_after(&before).into()
    }

    /// The message as JSON behind a text. It is written once, into a buffer of its size: a large
    /// message would otherwise exist several times while it is encoded.
    fn json_after(&self, before: &str) -> String {
        let data = MessageData {
            message_id: self.id,
            conversation_id: self.conversation,
            seq: self.seq,
            sender: Sender::of(self.sender, self.device_id),
            // Only JSON that was checked on its way in is ever stored.
            payload: serde_json::from_str(self.payload).unwrap_or(RawValue::NULL),
            purged: self.payload.is_empty() && self.deletion.is_none(),
            deleted_at: self.deletion.map(|deletion| iso(deletion.at)),
            deleted_by: self.deletion.map(|deletion| deletion.by),
            recipients: self.recipients,
            client_message_id: self.client_message_id,
            in_reply_to: self.in_reply_to,
            refs: self.refs,
            hop: self.hop,
            created_at: self.created_at,
        };
        let mut text = Vec::with_capacity(self.payload.len() + MESSAGE_FIELDS_BYTES);
        text.extend_from_slice(before.as_bytes());
        serde_json::to_writer(&mut text, &data)
            .ok()
            .and_then(|()| String::from_utf8(text).ok())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use blindpipe_protocol::events::EventObject;

    use super::*;

    #[test]
    fn an_encoded_event_tells_its_name_and_conversation() {
        let (id, at) = (
            EventId::from_bytes(1_u128.to_be_bytes()),
            DateTime::UNIX_EPOCH,
        );
        let conversation = Some(ConversationId::from_bytes(2_u128.to_be_bytes()));
        for conversation in [conversation, None] {
            let data = r#"{"conversation_id":"x"}"#;
            let encoded = encoded(id, "grant.decided", conversation, at, data);
            assert_eq!(kind_of(&encoded), "grant.decided");
            assert_eq!(conversation_of(&encoded), conversation);
            assert_eq!(id_of(&encoded), Some(id));
            let (head, tail) = split_data(&encoded).expect("data");
            assert!(head.ends_with(r#""data":"#) && tail == data, "{head}");
        }
    }

    #[test]
    fn a_message_that_is_written_by_hand_reads_as_its_type() {
        let agent = Principal::Agent(crate::ids::AgentId::from_bytes(7_u128.to_be_bytes()));
        let message = Message {
            id: MessageId::from_bytes(1_u128.to_be_bytes()),
            conversation: ConversationId::from_bytes(2_u128.to_be_bytes()),
            seq: 3,
            sender: agent,
            device_id: None,
            payload: r#"{ "type":"t", "n": 1.00 }"#,
            deletion: None,
            recipients: Some(&[agent.wire_id()]),
            client_message_id: None,
            in_reply_to: Some(MessageId::from_bytes(4_u128.to_be_bytes())),
            refs: Some(&[MessageId::from_bytes(5_u128.to_be_bytes())]),
            hop: 1,
            created_at: DateTime::UNIX_EPOCH,
        };
        let deleter = agent.wire_id();
        let deletion = Some(Deletion {
            at: DateTime::UNIX_EPOCH,
            by: &deleter,
        });
        for (payload, deletion) in [(message.payload, None), ("", None), ("", deletion)] {
            let message = Message {
                payload,
                deletion,
                ..message
            };
            let cursor = Cursor { epoch: 1, seq: 9 };
            let text = object(cursor, &message.encoded());
            let typed: EventObject = serde_json::from_str(&text).expect("an event");
            let Event::MessageCreated(data) = &typed.event else {
                panic!("a message: {text}");
            };
            assert_eq!(serde_json::to_string(data).expect("JSON"), message.json());
            assert_eq!((typed.cursor, typed.seq), (cursor, 9));
        }
    }
}
