//! Bounded text.

use std::str::FromStr;

use blindpipe_protocol::bad_text::BadText;

/// A string of `MIN..=MAX` bytes without control characters. It is not trimmed.
#[derive(Clone)]
pub struct Text<const MIN: usize, const MAX: usize>(pub String);

impl<const MIN: usize, const MAX: usize> FromStr for Text<MIN, MAX> {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        if !(MIN..=MAX).contains(&text.len()) {
            let message = format!("must have {MIN} to {MAX} bytes");
            return Err(BadText::made("length", message));
        }
        if text.chars().any(char::is_control) {
            let message = "control characters are not allowed";
            return Err(BadText::new("characters", message));
        }
        Ok(Text(text.to_owned()))
    }
}
