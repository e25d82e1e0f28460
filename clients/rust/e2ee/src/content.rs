//! The rules of contents, and the padding that hides their length.

use serde_json::Value;

use crate::{Error, Result};

/// The largest content; a larger one is sent as a file.
pub const MAX_CONTENT_BYTES: usize = 720 * 1024;
/// How deep objects and lists may lie in each other.
pub const MAX_CONTENT_DEPTH: usize = 64;
/// Every whole number up to here is itself in every language.
const MAX_SAFE_NUMBER: f64 = 9_007_199_254_740_991.0;

/// The bytes before the content in a plaintext: signature, time, view, length.
pub(crate) const FRONT_BYTES: usize = 96;

/// The content as JSON: an object in UTF-8 that every language reads alike. Nobody shall be shown
/// other than what somebody else executes.
///
/// # Errors
///
/// `malformed` if it is too large, else `not_json`.
pub fn parse(content: &[u8]) -> Result<Value> {
    parse_within(content, MAX_CONTENT_BYTES)
}

/// As [`parse`], for a content that was sealed as a file.
///
/// # Errors
///
/// As [`parse`].
pub fn parse_within(content: &[u8], max_bytes: usize) -> Result<Value> {
    if content.len() > max_bytes {
        return Err(Error::Malformed);
    }
    let value: Value = serde_json::from_slice(content).map_err(|_| Error::NotJson)?;
    if value.is_object() && portable(&value, 1) {
        return Ok(value);
    }
    Err(Error::NotJson)
}

fn portable(value: &Value, depth: usize) -> bool {
    let below = |value| portable(value, depth + 1);
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|n| n.abs() <= MAX_SAFE_NUMBER),
        Value::Array(items) => depth <= MAX_CONTENT_DEPTH && items.iter().all(below),
        Value::Object(map) => depth <= MAX_CONTENT_DEPTH && map.values().all(below),
        _ => true,
    }
}

/// The padded length of `length` bytes, by the rule of Padmé: at most 12 % more.
#[must_use]
pub fn padded(length: usize, least: usize) -> usize {
    let length = length.max(least);
    let exponent = length.ilog2();
    let digits = exponent.ilog2() + 1;
    length.next_multiple_of(1 << (exponent - digits))
}
