//! THE NODE MESSAGES: what nodes say to each other. All of it may be lost; the sweep says it again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{events::Tail, ids::NodeId};

/// Bodies larger than this stay in Postgres: the hint says only that there is one.
const CARRIED_BYTES: usize = 16 * 1024;

/// "Inbox of the channel's principal has reached `seq`", with the event if it is small.
pub struct Hint {
    /// Who says so.
    pub from: NodeId,
    /// The event's number.
    pub seq: i64,
    /// The event.
    pub tail: Option<Tail>,
}

impl Hint {
    /// `<node> <seq> <tail>`: read by the million, so not JSON around JSON.
    pub fn encode(from: NodeId, seq: i64, tail: &Tail) -> String {
        if tail.len() <= CARRIED_BYTES { format!("{from} {seq} {tail}") } else { format!("{from} {seq} ") }
    }

    /// What [`encode`](Self::encode) wrote.
    pub fn decode(text: &str) -> Option<Hint> {
        let mut parts = text.splitn(3, ' ');
        let from = parts.next()?.parse().ok()?;
        let seq = parts.next()?.parse().ok()?;
        let tail = parts.next().filter(|tail| !tail.is_empty()).map(Arc::from);
        Some(Hint { from, seq, tail })
    }
}

/// An order to every node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Order {
    /// These sessions or tokens no longer count; their sockets are to be closed.
    Invalidate {
        /// Session and token ids.
        credentials: Vec<Uuid>,
        /// As `session.invalidated` says it.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, random::Random};

    #[test]
    fn a_hint_carries_a_small_event_and_announces_a_large_one() {
        let node = NodeId::mint(&Random::seeded(Clock::default(), [1; 32]));
        let small: Tail = r#""data":{"text":"a b  c"}"#.into();
        let hint = Hint::decode(&Hint::encode(node, 7, &small)).expect("a hint");
        assert_eq!((hint.from, hint.seq, hint.tail.as_deref()), (node, 7, Some(&*small)));
        let large: Tail = "x".repeat(CARRIED_BYTES + 1).into();
        assert!(Hint::decode(&Hint::encode(node, 8, &large)).expect("a hint").tail.is_none());
        for junk in ["", " ", "x 1 y", "01ARZ3NDEKTSV4RRFFQ69G5FAV"] {
            assert!(Hint::decode(junk).is_none(), "{junk:?}");
        }
    }
}
