//! Pins as a store keeps them, for ever: the same JSON in every language.

use serde_json::{Map, Value, json};

use super::{Pin, Pins, Policy, Standing, Trust};
use crate::{
    Error, KeyId, Principal, PublicKeys, Result,
    bytes::{hex, unhex},
    from_base64, to_base64,
};

impl Trust {
    /// This client's knowledge of others' keys. It holds no secret.
    #[must_use]
    pub fn store(&self) -> Value {
        let principals: Map<_, _> = self
            .pins
            .iter()
            .map(|(of, pins)| (of.to_hex(), store_pins(pins)))
            .collect();
        json!({ "principals": principals })
    }

    /// Takes up what [`Self::store`] gave.
    ///
    /// # Errors
    ///
    /// `malformed`: the store holds something else.
    pub fn restore(
        me: Principal,
        policy: Policy,
        own: impl IntoIterator<Item = KeyId>,
        stored: &Value,
    ) -> Result<Self> {
        let mut trust = Self::new(me, policy, own);
        let principals = stored["principals"].as_object().ok_or(Error::Malformed)?;
        for (name, pins) in principals {
            trust
                .pins
                .insert(Principal::from_hex(name)?, restore_pins(pins)?);
        }
        Ok(trust)
    }
}

pub(super) fn store_pins(pins: &Pins) -> Value {
    let keys = pins.keys.iter();
    let keys: Vec<_> = keys.map(|(key_id, pin)| store_pin(*key_id, pin)).collect();
    json!({ "speaks": pins.speaks_bp1, "linked": pins.linked.map(hex), "keys": keys })
}

fn store_pin(key_id: KeyId, pin: &Pin) -> Value {
    json!({
        "key_id": hex(key_id),
        "public_key": to_base64(pin.keys.public_key()),
        "signing_public_key": to_base64(pin.keys.signing_public_key()),
        "device_id": pin.device_id.as_deref().unwrap_or_default(),
        "standing": pin.standing.name(),
        "retired": pin.retired,
        "retired_at": pin.retired_at,
        "introduced_by": pin.introduced_by.map(hex),
    })
}

pub(super) fn restore_pins(stored: &Value) -> Result<Pins> {
    let keys = stored["keys"].as_array().ok_or(Error::Malformed)?;
    Ok(Pins {
        keys: keys.iter().map(restore_pin).collect::<Result<_>>()?,
        speaks_bp1: stored["speaks"] == true,
        linked: optional_id(&stored["linked"])?,
    })
}

fn restore_pin(stored: &Value) -> Result<(KeyId, Box<Pin>)> {
    let key = |field: &str| -> Result<[u8; 32]> {
        let text = stored[field].as_str().ok_or(Error::Malformed)?;
        from_base64(text)?.try_into().map_err(|_| Error::Malformed)
    };
    let keys = PublicKeys::new(key("public_key")?, key("signing_public_key")?)?;
    let standing = Standing::ALL
        .into_iter()
        .find(|standing| stored["standing"] == standing.name());
    let device_id = stored["device_id"].as_str().filter(|id| !id.is_empty());
    let pin = Pin {
        keys,
        device_id: device_id.map(str::to_owned),
        standing: standing.ok_or(Error::Malformed)?,
        retired: stored["retired"] == true,
        retired_at: stored["retired_at"].as_u64(),
        introduced_by: optional_id(&stored["introduced_by"])?,
        stored: true,
    };
    Ok((keys.key_id(), Box::new(pin)))
}

fn optional_id(stored: &Value) -> Result<Option<KeyId>> {
    let text = stored.as_str();
    text.map(|text| unhex(text).ok_or(Error::Malformed))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PrivateKeys, Secret, trust::DirectoryKey};

    #[test]
    fn a_restored_trust_knows_what_the_first_one_knew() {
        let (me, other) = (Principal::Agent([1; 16]), Principal::User([2; 16]));
        let keys = PrivateKeys::new(Secret::new([3; 32]), &Secret::new([4; 32]));
        let listed = DirectoryKey {
            device_id: Some("laptop".to_owned()),
            public_key: *keys.public().public_key(),
            signing_public_key: *keys.public().signing_public_key(),
            schemes: vec!["bp1".to_owned()],
            introduction: None,
            retired: false,
            retired_at: None,
        };
        let mut first = Trust::new(me, Policy::Tofu, []);
        first.directory(other, &[listed], 1);
        assert_eq!(first.verify(other, keys.key_id(), 1), Some(Vec::new()));
        let second = Trust::restore(me, Policy::Tofu, [], &first.store()).expect("a store");
        let pin = second.pin(other, keys.key_id()).expect("a pin");
        assert!(pin.stored && pin.standing == Standing::Verified);
        assert_eq!(pin.device_id.as_deref(), Some("laptop"));
        assert!(second.speaks_bp1(other));
        assert_eq!(second.store(), first.store());
        assert!(Trust::restore(me, Policy::Tofu, [], &json!([])).is_err());
    }
}
