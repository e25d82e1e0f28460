//! The form of a message in a request body or a frame.

use std::collections::{BTreeMap, HashSet};

use axum::http::HeaderMap;
use blindpipe_protocol::search::SearchToken;
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::{Uuid, Variant, Version};

use crate::{
    error::{Code, Error, Result},
    http::json,
    ids::{ConversationId, MessageId, Principal},
    limits::quotas::{MAX_MESSAGE_BYTES, MAX_RECIPIENTS, MAX_REFS, MAX_SEARCH_TOKENS},
    planted::PlantedBug,
};

/// A message that has been read and checked, and not yet sent.
pub struct Draft {
    /// A JSON object with a string `type`, as received.
    pub payload: String,
    /// Whether its type marks it as ciphertext.
    pub encrypted: bool,
    /// The sender's own id for it, under any of its names.
    pub key: Option<Uuid>,
    /// The sender's own id if it came as `client_message_id`. Readers see it.
    pub client_message_id: Option<MessageId>,
    /// The message that it answers.
    pub in_reply_to: Option<MessageId>,
    /// The principals that it names, each once. An agent with the visibility `addressed` gets only
    /// messages that name it.
    pub recipients: Option<Vec<Principal>>,
    /// The hashes by which clients find it, each once.
    pub search_tokens: Vec<SearchToken>,
    /// The messages that it concerns, each once.
    pub refs: Option<Vec<MessageId>>,
}

/// The names beside a bare payload's own fields.
#[derive(Deserialize)]
struct SendFields {
    conversation_id: Option<ConversationId>,
    client_message_id: Option<MessageId>,
    idempotency_key: Option<Uuid>,
    in_reply_to: Option<MessageId>,
}

const SEND_FIELDS: [&str; 4] = [
    "conversation_id",
    "client_message_id",
    "idempotency_key",
    "in_reply_to",
];

#[derive(Deserialize)]
struct WrappedPayload<'a> {
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

/// The names beside a wrapped payload only. In a bare payload, a field of this name belongs to the
/// payload.
#[derive(Default, Deserialize)]
struct Envelope {
    recipients: Option<Vec<Principal>>,
    search_tokens: Option<Vec<SearchToken>>,
    refs: Option<Vec<MessageId>>,
}

#[derive(Deserialize)]
struct Kind {
    r#type: String,
}

impl Draft {
    /// Reads a request body: `{payload, client_message_id?, in_reply_to?}`, or the bare payload
    /// with the ids beside its fields. Also reads the conversation if the body names one. Refuses a
    /// payload over 1 MB with `too_large`.
    pub fn from_body(
        bytes: &[u8],
        headers: &HeaderMap,
        too_large: Code,
    ) -> Result<(Self, Option<ConversationId>)> {
        let beside: SendFields = json::parse(bytes)?;
        let text =
            std::str::from_utf8(bytes).map_err(|_| Error::field("", "json", "is not UTF-8"))?;
        let (payload, envelope) = match wrapped(text) {
            Some(payload) => (payload.to_owned(), json::parse(bytes)?),
            None => (bare(text)?, Envelope::default()),
        };
        let conversation = beside.conversation_id;
        Ok((
            Self::new(payload, beside, envelope, Some(headers), too_large)?,
            conversation,
        ))
    }

    /// Reads a `message.send` frame. Its own `type` rules out a bare payload.
    pub fn from_frame(text: &str, too_large: Code) -> Result<Self> {
        let beside: SendFields = json::parse(text.as_bytes())?;
        let payload = wrapped(text)
            .ok_or_else(|| Error::field("payload", "required", "missing field `payload`"))?;
        Self::new(
            payload.to_owned(),
            beside,
            json::parse(text.as_bytes())?,
            None,
            too_large,
        )
    }

    fn new(
        payload: String,
        beside: SendFields,
        envelope: Envelope,
        headers: Option<&HeaderMap>,
        too_large: Code,
    ) -> Result<Self> {
        if payload.len() > MAX_MESSAGE_BYTES {
            return Err(too_large.into());
        }
        let kind: Kind = serde_json::from_str(&payload).map_err(|_| {
            Error::field(
                "payload",
                "payload",
                "must be an object with a string `type`",
            )
        })?;
        let key = key(&beside, headers)?;
        Ok(Draft {
            payload,
            encrypted: kind.r#type == "encrypted",
            key,
            client_message_id: beside.client_message_id,
            in_reply_to: beside.in_reply_to,
            search_tokens: search_tokens(envelope.search_tokens)?,
            recipients: recipients(envelope.recipients)?,
            refs: refs(envelope.refs)?,
        })
    }
}

fn search_tokens(tokens: Option<Vec<SearchToken>>) -> Result<Vec<SearchToken>> {
    let mut tokens = tokens.unwrap_or_default();
    tokens.sort_unstable();
    tokens.dedup();
    if tokens.len() > MAX_SEARCH_TOKENS {
        return Err(Error::field(
            "search_tokens",
            "length",
            "must have at most 64",
        ));
    }
    Ok(tokens)
}

/// Each once, in the sender's order; none for an empty list.
fn refs(refs: Option<Vec<MessageId>>) -> Result<Option<Vec<MessageId>>> {
    let mut seen = HashSet::new();
    let mut refs = refs.unwrap_or_default();
    refs.retain(|id| seen.insert(*id));
    if refs.len() > MAX_REFS {
        return Err(Error::field("refs", "length", "must name at most 8"));
    }
    Ok((!refs.is_empty()).then_some(refs))
}

fn recipients(recipients: Option<Vec<Principal>>) -> Result<Option<Vec<Principal>>> {
    let Some(mut recipients) = recipients else {
        return Ok(None);
    };
    recipients.sort_unstable();
    recipients.dedup();
    if !(1..=MAX_RECIPIENTS).contains(&recipients.len()) {
        return Err(Error::field(
            "recipients",
            "length",
            "must name 1 to 500 members",
        ));
    }
    Ok(Some(recipients))
}

fn wrapped(text: &str) -> Option<&str> {
    serde_json::from_str::<WrappedPayload<'_>>(text)
        .ok()?
        .payload
        .map(RawValue::get)
}

/// The payload of a body without `payload`: all fields except the reserved names.
fn bare(text: &str) -> Result<String> {
    let fault = || Error::field("payload", "required", "missing field `payload`");
    let mut fields: BTreeMap<String, &RawValue> =
        serde_json::from_str(text).map_err(|_| fault())?;
    fields.retain(|name, _| !SEND_FIELDS.contains(&name.as_str()));
    if !fields.contains_key("type") {
        return Err(fault());
    }
    serde_json::to_string(&fields).map_err(|_| fault())
}

/// The idempotency key, under any of three names. Two different values are an error.
fn key(beside: &SendFields, headers: Option<&HeaderMap>) -> Result<Option<Uuid>> {
    let header = headers.and_then(|headers| headers.get("idempotency-key"));
    let header = match header.map(|value| {
        value
            .to_str()
            .ok()
            .and_then(|text| Uuid::try_parse(text).ok())
    }) {
        Some(None) => return Err(no_v4("Idempotency-Key")),
        Some(Some(key)) => Some(key),
        None => None,
    };
    for (field, key) in [
        ("idempotency_key", beside.idempotency_key),
        ("Idempotency-Key", header),
    ] {
        if key.is_some_and(|key| !is_v4(&key)) {
            return Err(no_v4(field));
        }
    }
    let mut given = [
        beside.client_message_id.map(|id| id.0),
        beside.idempotency_key,
        header,
    ]
    .into_iter()
    .flatten();
    let first = given.next();
    match given.find(|other| Some(*other) != first) {
        Some(_) => Err(Error::field(
            "client_message_id",
            "conflict",
            "two different ids for one message",
        )),
        None if PlantedBug::IdempotencyByNode.is_planted() => {
            let node = u128::from(std::process::id());
            Ok(first.map(|key| Uuid::from_u128(key.as_u128() ^ node)))
        }
        None => Ok(first),
    }
}

fn is_v4(key: &Uuid) -> bool {
    key.get_version() == Some(Version::Random) && key.get_variant() == Variant::RFC4122
}

fn no_v4(field: &str) -> Error {
    Error::field(field, "format", "is no UUID of version 4")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Draft> {
        Draft::from_body(text.as_bytes(), &HeaderMap::new(), Code::MessageTooLarge)
            .map(|(draft, _)| draft)
    }

    #[test]
    fn a_wrapped_and_a_bare_payload_say_the_same() {
        let wrapped = read(
            r#"{"payload":{"text":"hi","type":"text"},"client_message_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}"#,
        );
        let bare =
            read(r#"{"type":"text","text":"hi","client_message_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}"#);
        let (wrapped, bare) = (wrapped.expect("valid"), bare.expect("valid"));
        assert_eq!(wrapped.payload, bare.payload);
        assert_eq!(wrapped.key, bare.key);
        assert!(wrapped.key.is_some());
    }

    #[test]
    fn a_payload_keeps_its_bytes() {
        let odd = r#"{ "type":"text", "n": 1.00, "big": 123456789012345678901234567890 }"#;
        assert_eq!(
            read(&format!(r#"{{"payload":{odd}}}"#))
                .expect("valid")
                .payload,
            odd
        );
    }

    #[test]
    fn recipients_stand_beside_a_payload_and_in_a_bare_one_are_part_of_it() {
        let (one, two) = (
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e",
        );
        let named = format!(r#""recipients":["{two}","{one}","{two}"]"#);
        let wrapped = read(&format!(r#"{{"payload":{{"type":"t"}},{named}}}"#)).expect("valid");
        let ids: Vec<String> = wrapped
            .recipients
            .expect("some")
            .iter()
            .map(|id| id.wire_id())
            .collect();
        assert_eq!(ids, [one, two]);
        let bare = read(&format!(r#"{{"type":"t",{named}}}"#)).expect("valid");
        assert!(bare.recipients.is_none() && bare.payload.contains("recipients"));
    }

    #[test]
    fn refs_are_kept_once_in_their_order_and_are_at_most_eight() {
        let id = |n: u32| format!("\"01ARZ3NDEKTSV4RRFFQ69G5F{n:02}\"");
        let list = |ids: &[u32]| ids.iter().map(|n| id(*n)).collect::<Vec<_>>().join(",");
        let with = |ids: &[u32]| {
            read(&format!(
                r#"{{"payload":{{"type":"t"}},"refs":[{}]}}"#,
                list(ids)
            ))
        };
        let refs = with(&[3, 1, 3]).expect("valid").refs.expect("some");
        let texts: Vec<String> = refs.iter().map(|id| format!("\"{id}\"")).collect();
        assert_eq!(texts, [id(3), id(1)]);
        assert!(with(&[]).expect("valid").refs.is_none());
        assert!(with(&[1, 2, 3, 4, 5, 6, 7, 8, 1]).is_ok());
        let refusal = with(&[1, 2, 3, 4, 5, 6, 7, 8, 9])
            .map(|_| ())
            .expect_err("nine");
        assert_eq!(refusal.code(), Code::ValidationError);
        let bare = read(&format!(r#"{{"type":"t","refs":[{}]}}"#, id(1))).expect("valid");
        assert!(bare.refs.is_none() && bare.payload.contains("refs"));
    }

    #[test]
    fn a_bare_payload_may_escape_its_names() {
        let bare = read(r#"{"type":"text","caf\u00e9":1}"#).expect("valid");
        assert_eq!(bare.payload, r#"{"café":1,"type":"text"}"#);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for text in [
            "null",
            "[]",
            "{}",
            r#"{"payload":null}"#,
            r#"{"payload":"x"}"#,
            r#"{"payload":{}}"#,
            r#"{"payload":{"type":1}}"#,
            r#"{"payload":{"type":"t"},"client_message_id":"x"}"#,
            r#"{"payload":{"type":"t"},"recipients":[]}"#,
            r#"{"payload":{"type":"t"},"recipients":["x"]}"#,
            r#"{"payload":{"type":"t"},"idempotency_key":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}"#,
            r#"{"payload":{"type":"t"},"client_message_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","idempotency_key":"0190b5e0-7c6e-4d3a-9c1b-2f4a5b6c7d8e"}"#,
        ] {
            assert_eq!(
                read(text).map(|_| ()).expect_err(text).code(),
                Code::ValidationError,
                "{text}"
            );
        }
    }
}
