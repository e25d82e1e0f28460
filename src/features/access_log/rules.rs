//! The chain: the bytes of a row, and the bounds of ids.

use std::fmt::Write;

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use crate::ids::{AccessId, AgentId, ConversationId, SubjectId};

/// A hash of the chain.
pub type Hash = [u8; 32];

/// The hash before the first row of a chain.
pub const GENESIS: Hash = [0; 32];

/// A row without its hash.
pub struct Row<'a> {
    pub subject: SubjectId,
    pub seq: i64,
    pub id: AccessId,
    pub agent: AgentId,
    pub conversation: Option<ConversationId>,
    pub kind: &'a str,
    pub items: i64,
    pub from_seq: Option<i64>,
    pub to_seq: Option<i64>,
    pub at: DateTime<Utc>,
}

/// The hash of a row: SHA-256 of the previous hash and the row's columns, divided by `|`. The
/// database computes the same when it inserts. `text` is a buffer.
pub fn hash(previous: &Hash, row: &Row<'_>, text: &mut String) -> Hash {
    text.clear();
    let Row {
        subject,
        seq,
        id,
        agent,
        kind,
        items,
        ..
    } = row;
    write!(text, "{}|{seq}|{}|{}|", subject.0, id.0, agent.0).ok();
    match row.conversation {
        Some(conversation) => write!(text, "{}", conversation.0).ok(),
        None => write!(text, "-").ok(),
    };
    write!(text, "|{kind}|{items}").ok();
    for number in [row.from_seq, row.to_seq] {
        match number {
            Some(number) => write!(text, "|{number}").ok(),
            None => write!(text, "|-").ok(),
        };
    }
    write!(text, "|{}", row.at.timestamp_micros()).ok();
    Sha256::new()
        .chain_update(previous)
        .chain_update(text.as_bytes())
        .finalize()
        .into()
}

/// The first ULID of a time's millisecond. A time before 1970 has the first of all.
pub fn ulid_floor(at: DateTime<Utc>) -> AccessId {
    let ms = u128::try_from(at.timestamp_millis()).unwrap_or_default();
    AccessId::from_bytes((ms << 80).to_be_bytes())
}

/// The first ULID of the millisecond that begins at a time, or of the next one.
pub fn ulid_ceiling(at: DateTime<Utc>) -> AccessId {
    let part = i64::from(!at.timestamp_subsec_nanos().is_multiple_of(1_000_000));
    let ms = u128::try_from(at.timestamp_millis() + part).unwrap_or_default();
    AccessId::from_bytes((ms << 80).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a time")
    }

    #[test]
    fn each_column_counts() {
        let row = || Row {
            subject: SubjectId::from_bytes([1; 16]),
            seq: 1,
            id: AccessId::from_bytes([2; 16]),
            agent: AgentId::from_bytes([3; 16]),
            conversation: None,
            kind: "history",
            items: 4,
            from_seq: Some(5),
            to_seq: None,
            at: at("2026-03-01T12:00:00.000001Z"),
        };
        let base = hash(&GENESIS, &row(), &mut String::new());
        let others = [
            Row {
                subject: SubjectId::NIL,
                ..row()
            },
            Row { seq: 2, ..row() },
            Row {
                id: AccessId::NIL,
                ..row()
            },
            Row {
                agent: AgentId::NIL,
                ..row()
            },
            Row {
                conversation: Some(ConversationId::NIL),
                ..row()
            },
            Row {
                kind: "poll",
                ..row()
            },
            Row { items: 5, ..row() },
            Row {
                from_seq: None,
                to_seq: Some(5),
                ..row()
            },
            Row {
                at: at("2026-03-01T12:00:00.000002Z"),
                ..row()
            },
        ];
        for (n, other) in others.iter().enumerate() {
            assert_ne!(hash(&GENESIS, other, &mut String::new()), base, "{n}");
        }
        assert_ne!(hash(&base, &row(), &mut String::new()), base);
    }

    #[test]
    fn ids_have_the_order_of_their_times() {
        let (early, late) = (
            at("2026-03-01T12:00:00.000Z"),
            at("2026-03-01T12:00:00.0005Z"),
        );
        assert_eq!(ulid_floor(early), ulid_floor(late));
        assert_eq!(ulid_ceiling(early), ulid_floor(early));
        assert!(ulid_ceiling(late) > ulid_floor(late));
        assert_eq!(ulid_floor(at("1960-01-01T00:00:00Z")), AccessId::NIL);
    }
}
