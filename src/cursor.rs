//! A place in an inbox, as clients keep it: the same string on sockets, polls and webhooks.

use std::{fmt, str::FromStr};

use crate::error::Error;

/// An epoch and the number of the last event seen. Another epoch means that Postgres may have lost its tail (failover
/// to an asynchronous standby, restored backup), so that equal numbers need not name equal events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// See [`crate::inbox::Inbox::epoch`].
    pub epoch: u64,
    /// 0 is before the first event.
    pub seq: i64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:x}-{}", self.epoch, self.seq)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (epoch, seq) = text.split_once('-')?;
            let cursor = Cursor {
                epoch: u64::from_str_radix(epoch, 16).ok()?,
                seq: seq.parse().ok()?,
            };
            // One spelling only: no signs, no leading zeros.
            (cursor.seq >= 0 && cursor.to_string() == text).then_some(cursor)
        };
        read().ok_or_else(|| Error::field("cursor", "format", "is no cursor"))
    }
}

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
        assert_eq!("10000-42".parse::<Cursor>().expect("a cursor"), cursor);
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
