//! JSON of the vectors and of the interop program: bytes are lower-case hex.

use blindpipe_e2ee::{
    EpochKey, Id, Principal, Secret, View,
    envelope::{Place, Request},
};
use serde_json::{Value, json};

pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().collect();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16).expect("hex")
    };
    digits.chunks(2).map(byte).collect()
}

/// The bytes of a field of an object.
pub fn bytes(value: &Value, field: &str) -> Vec<u8> {
    unhex(
        value[field]
            .as_str()
            .unwrap_or_else(|| panic!("no {field} in {value}")),
    )
}

pub fn array<const N: usize>(value: &Value, field: &str) -> [u8; N] {
    bytes(value, field).try_into().expect("the right length")
}

pub fn text(value: &Value, field: &str) -> String {
    value[field].as_str().expect("a string").to_owned()
}

pub fn optional(value: &Value, field: &str) -> Option<String> {
    value[field].as_str().map(str::to_owned)
}

pub fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().expect("a number")
}

pub fn secret(value: &Value, field: &str) -> Secret {
    Secret::new(array(value, field))
}

pub fn principal(value: &Value, field: &str) -> Principal {
    Principal::from_bytes(array(value, field)).expect("a principal")
}

pub fn view(value: &Value, field: &str) -> View {
    let bytes: [u8; 20] = array(value, field);
    View {
        list_version: u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes")),
        keys_hash: bytes[4..].try_into().expect("16 bytes"),
    }
}

/// `{secret}`, or `{lane_agent, lane_secret, sid}`.
pub fn epoch_key(value: &Value, conversation: Id, epoch: u32) -> EpochKey {
    if value["secret"].is_string() {
        return EpochKey::new(conversation, epoch, secret(value, "secret"));
    }
    let lane = secret(value, "lane_secret");
    EpochKey::lane(
        conversation,
        epoch,
        array(value, "lane_agent"),
        lane,
        array(value, "sid"),
    )
}

pub fn place(value: &Value) -> Place {
    match number(value, "kind") {
        1 => Place::Message {
            client_message_id: array(value, "client_message_id"),
            in_reply_to: value["in_reply_to"]
                .is_string()
                .then(|| array(value, "in_reply_to")),
        },
        2 => Place::Delta {
            stream_id: text(value, "stream_id"),
            n: number(value, "n"),
        },
        3 => Place::Request(request(value)),
        4 => Place::Response {
            digest: array(value, "digest"),
            request_id: text(value, "request_id"),
            status: text(value, "status"),
            reason: optional(value, "reason"),
        },
        kind => panic!("kind {kind}"),
    }
}

fn request(value: &Value) -> Request {
    Request {
        asked: array(value, "asked"),
        request_id: text(value, "request_id"),
        tool: text(value, "tool"),
        scope: text(value, "scope"),
        device_id: optional(value, "device_id"),
    }
}

pub fn place_json(place: &Place) -> Value {
    let mut json = match place {
        Place::Message {
            client_message_id,
            in_reply_to,
        } => json!({
            "client_message_id": hex(client_message_id),
            "in_reply_to": in_reply_to.map(hex),
        }),
        Place::Delta { stream_id, n } => json!({"stream_id": stream_id, "n": n}),
        Place::Request(request) => json!({
            "asked": hex(request.asked),
            "request_id": request.request_id,
            "tool": request.tool,
            "scope": request.scope,
            "device_id": request.device_id,
        }),
        Place::Response {
            digest,
            request_id,
            status,
            reason,
        } => json!({
            "digest": hex(digest),
            "request_id": request_id,
            "status": status,
            "reason": reason,
        }),
    };
    json["kind"] = place.kind().into();
    json
}
