//! A position in an inbox: the same string on sockets, polls and webhooks.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::bad_text::BadText;

/// An epoch and the number of the last event seen, written `<epoch in hex>-<seq>`.
///
/// Another epoch means that Postgres may have lost its newest commits (failover to an asynchronous
/// standby, restored backup). Equal numbers of two epochs need not name equal events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The epoch of the database history that the number belongs to.
    pub epoch: u64,
    /// The number of an event in its reader's inbox; 0 is before the first.
    pub seq: i64,
}

/// The error for a string that is no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCursor;

impl fmt::Display for BadCursor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        BadText::new("format", "is no cursor").fmt(to)
    }
}

impl std::error::Error for BadCursor {}

impl fmt::Display for Cursor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:x}-{}", self.epoch, self.seq)
    }
}

impl FromStr for Cursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        let (epoch, seq) = text.split_once('-').ok_or(BadCursor)?;
        let cursor = Cursor {
            epoch: u64::from_str_radix(epoch, 16).map_err(|_| BadCursor)?,
            seq: seq.parse().map_err(|_| BadCursor)?,
        };
        // There is one spelling only: no signs, no leading zeros.
        if cursor.seq >= 0 && cursor.to_string() == text {
            Ok(cursor)
        } else {
            Err(BadCursor)
        }
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(de::Error::custom)
    }
}

string_schema!(
    Cursor,
    "A place in an inbox: `<epoch in hex>-<number of the last event seen>`.",
    |object| object
        .pattern(Some("^[0-9a-f]+-[0-9]+$"))
        .examples([serde_json::json!("10000-42")])
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_what_it_writes_and_nothing_else() {
        let cursor = Cursor {
            epoch: 0x10000,
            seq: 42,
        };
        assert_eq!(cursor.to_string(), "10000-42");
        assert_eq!("10000-42".parse(), Ok(cursor));
        for text in [
            "",
            "-",
            "10000",
            "10000-",
            "-42",
            "10000--1",
            "10000-042",
            "+1-1",
            "1-+1",
            "g-1",
            "1-9223372036854775808",
        ] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }
}
