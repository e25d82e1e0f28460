//! The document of a person's client: session, keys, pins, choices, consents.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use blindpipe_e2ee::{
    KeyId, PrivateKeys, Secret,
    consent::{Consents, Tool},
    from_base64,
    room::Marks,
    to_base64,
};
use blindpipe_protocol::ids::ConversationId;
use serde_json::{Value, json};

use super::account::Identity;
use crate::{Error, Result};

/// This device's keys.
#[derive(Clone)]
pub(super) struct DeviceKeys {
    pub(super) signer: PrivateKeys,
    /// Keys of before, for old wraps.
    pub(super) earlier: Vec<(KeyId, Secret)>,
}

impl DeviceKeys {
    pub(super) fn store(&self) -> Value {
        let secret = |secret: &Secret| to_base64(secret.expose());
        let earlier = self.earlier.iter();
        let earlier = earlier.map(|(id, key)| json!([to_base64(id), secret(key)]));
        json!({
            "x25519": secret(self.signer.x25519()),
            "ed25519": secret(&self.signer.ed25519_seed()),
            "earlier": earlier.collect::<Vec<_>>(),
        })
    }

    pub(super) fn restore(stored: &Value) -> Result<Self> {
        let secret = |value: &Value| bytes(value).map(Secret::new);
        let signer = PrivateKeys::new(secret(&stored["x25519"])?, &secret(&stored["ed25519"])?);
        let earlier = stored["earlier"].as_array().into_iter().flatten();
        let earlier = earlier.map(|entry| Ok((bytes(&entry[0])?, secret(&entry[1])?)));
        Ok(Self {
            signer,
            earlier: earlier.collect::<Result<_>>()?,
        })
    }
}

fn bytes<const N: usize>(value: &Value) -> Result<[u8; N]> {
    let text = value.as_str().ok_or(blindpipe_e2ee::Error::Malformed)?;
    let bytes = from_base64(text)?.try_into();
    bytes.map_err(|_| blindpipe_e2ee::Error::Malformed.into())
}

pub(super) fn store_identity(identity: &Identity, cookie: &str) -> Value {
    let Identity {
        user_id, device_id, ..
    } = identity;
    json!({ "user_id": user_id, "device_id": device_id, "cookie": cookie })
}

pub(super) fn restore_identity(stored: &Value) -> Option<(Identity, String)> {
    let identity = Identity {
        user_id: stored["user_id"].as_str()?.parse().ok()?,
        device_id: stored["device_id"].as_str()?.to_owned(),
        key_backup: None,
    };
    Some((identity, stored["cookie"].as_str()?.to_owned()))
}

/// A person's choices on this device.
pub(super) struct Choices {
    /// Conversations to write in clear.
    pub(super) clear: BTreeSet<ConversationId>,
    pub(super) consents: Consents,
}

impl Choices {
    pub(super) fn restore(tools: BTreeMap<String, Tool>, document: &Value) -> Result<Self> {
        let clear = document["clear_chosen"].as_array().into_iter().flatten();
        let clear = clear.filter_map(|id| id.as_str()?.parse().ok()).collect();
        let consents = match &document["consents"] {
            Value::Null => Consents::new(tools),
            stored => Consents::restore(tools, stored)?,
        };
        Ok(Self { clear, consents })
    }
}

pub(super) fn read(document: Option<Vec<u8>>) -> Result<Value> {
    match document {
        Some(document) => serde_json::from_slice(&document).map_err(Error::other),
        None => Ok(Value::Null),
    }
}

pub(super) fn store_marks(marks: &HashMap<ConversationId, Marks>) -> Value {
    let stored = marks
        .iter()
        .map(|(id, marks)| (id.to_string(), marks.store()));
    Value::Object(stored.collect())
}

pub(super) fn restore_marks(stored: &Value) -> HashMap<ConversationId, Marks> {
    let stored = stored.as_object().into_iter().flatten();
    let marks = stored.filter_map(|(id, marks)| Some((id.parse().ok()?, Marks::restore(marks)?)));
    marks.collect()
}
