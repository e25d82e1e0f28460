//! Checks of a field after its body was read.

use std::str::FromStr;

use blindpipe_protocol::bad_text::BadText;

use crate::error::{Error, Result};

/// Parses the text of the field at `path`. Errors: `VALIDATION_ERROR` with the path, the rule and a
/// message.
pub fn parse_field<T: FromStr<Err = BadText>>(path: &str, text: &str) -> Result<T> {
    text.parse()
        .map_err(|BadText { rule, message }| Error::field(path, rule, message))
}
