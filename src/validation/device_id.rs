//! What a device id is.

use std::fmt;

use serde::{Deserialize, Deserializer, de::Error as _};

/// A device id: the client's choice, within these characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceId(pub String);

impl DeviceId {
    /// The text, if it is one.
    pub fn read(text: String) -> Option<Self> {
        let sane = (1..=128).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte));
        sane.then_some(DeviceId(text))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        DeviceId::read(text)
            .ok_or_else(|| D::Error::custom("format|must be 1 to 128 of A-Z a-z 0-9 . _ : -"))
    }
}
