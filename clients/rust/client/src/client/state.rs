//! The document of a person's client: session, keys, choices, consents.

use std::collections::{BTreeMap, BTreeSet};

use blindpipe_e2ee::{
    KeyId, PrivateKeys, Secret,
    consent::{Consents, Tool},
    from_base64, to_base64,
};
use blindpipe_protocol::ids::ConversationId;
use serde_json::{Value, json};

use super::account::Identity;
use crate::{Error, Result, Store};

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
    /// A change here is in no store yet.
    is_unsaved: bool,
}

impl Choices {
    pub(super) fn restore(tools: BTreeMap<String, Tool>, document: &Value) -> Result<Self> {
        let consents = match &document["consents"] {
            Value::Null => Consents::new(tools),
            stored => Consents::restore(tools, stored)?,
        };
        Ok(Self {
            clear: restore_clear(document),
            consents,
            is_unsaved: false,
        })
    }

    /// Takes over the choices that another process of this device has stored.
    pub(super) fn take_over(&mut self, document: &Value) -> Result<()> {
        let stored = &document["consents"];
        if self.is_unsaved || stored.is_null() {
            return Ok(());
        }
        self.consents.take_over(stored)?;
        self.clear = restore_clear(document);
        Ok(())
    }

    pub(super) const fn changed(&mut self) {
        self.is_unsaved = true;
    }

    pub(super) const fn saved(&mut self) {
        self.is_unsaved = false;
    }

    pub(super) fn put_into(&self, document: &mut Value) {
        document["clear_chosen"] = json!(self.clear);
        document["consents"] = self.consents.store();
    }
}

fn restore_clear(document: &Value) -> BTreeSet<ConversationId> {
    let clear = document["clear_chosen"].as_array().into_iter().flatten();
    clear.filter_map(|id| id.as_str()?.parse().ok()).collect()
}

/// The document of a store; null if there is none.
pub(super) fn load(store: &dyn Store) -> Result<Value> {
    match store.load().map_err(Error::Store)? {
        Some(document) => serde_json::from_slice(&document).map_err(Error::other),
        None => Ok(Value::Null),
    }
}
