//! Bounded text.

use blindpipe_protocol::text::is_deceptive;
use serde::{Deserialize, Deserializer, de::Error as _};

/// A string of `MIN..=MAX` bytes without control characters. It is not trimmed.
#[derive(Clone, Debug)]
pub struct Text<const MIN: usize, const MAX: usize>(pub String);

impl<'de, const MIN: usize, const MAX: usize> Deserialize<'de> for Text<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let length = text.len();
        if length < MIN || length > MAX {
            return Err(D::Error::custom(format_args!(
                "length|must have {MIN} to {MAX} bytes"
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(D::Error::custom(
                "characters|control characters are not allowed",
            ));
        }
        Ok(Text(text))
    }
}

/// A name that others see: 1 to `MAX` bytes of text, without characters that make it look like
/// another name.
#[derive(Clone, Debug)]
pub struct Name<const MAX: usize>(pub String);

impl<'de, const MAX: usize> Deserialize<'de> for Name<MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Text(name) = Text::<1, MAX>::deserialize(from)?;
        if is_deceptive(&name) {
            return Err(D::Error::custom(
                "characters|invisible characters and controls of direction are not allowed",
            ));
        }
        Ok(Name(name))
    }
}
