//! THE NODE MESSAGES: what nodes say to each other. All of it may be lost; the sweep says again what must not be.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    events::EncodedEvent,
    features::streams::table::StreamId,
    ids::{AgentId, ConversationId, NodeId},
    inbox::Delivery,
};

/// Bodies larger than this stay in Postgres: the hint says only that there is one.
const MAX_HINT_EVENT_BYTES: usize = 16 * 1024;

/// "Inbox of the channel's principal has reached `seq`", with the event if it is small.
pub struct Hint {
    /// Who says so.
    pub from: NodeId,
    /// The event's number.
    pub seq: i64,
    /// The event.
    pub encoded: Option<EncodedEvent>,
}

impl Hint {
    /// `<node> <seq> <encoded>`: read by the million, so not JSON around JSON.
    pub fn encode(from: NodeId, seq: i64, encoded: &EncodedEvent) -> String {
        format!("{from} {seq} {}", carried(encoded))
    }

    /// What [`encode`](Self::encode) wrote.
    pub fn decode(text: &str) -> Option<Hint> {
        let mut parts = text.splitn(3, ' ');
        let from = parts.next()?.parse().ok()?;
        let seq = parts.next()?.parse().ok()?;
        Some(Hint {
            from,
            seq,
            encoded: tail_in(parts.next()?),
        })
    }
}

fn carried(encoded: &EncodedEvent) -> &str {
    if encoded.len() <= MAX_HINT_EVENT_BYTES {
        encoded
    } else {
        ""
    }
}

fn tail_in(text: &str) -> Option<EncodedEvent> {
    Some(text)
        .filter(|encoded| !encoded.is_empty())
        .map(Arc::from)
}

/// The same for many inboxes at once.
pub struct Hints {
    /// Who says so.
    pub from: NodeId,
    /// How far each has come.
    pub deliveries: Vec<Delivery>,
    /// The event.
    pub encoded: Option<EncodedEvent>,
}

impl Hints {
    /// `!<node> <base64 of (principal, number)…> <encoded>`
    pub fn encode(from: NodeId, deliveries: &[Delivery], encoded: &EncodedEvent) -> String {
        let mut bytes = Vec::with_capacity(deliveries.len() * 24);
        for Delivery { principal, seq } in deliveries {
            bytes.extend_from_slice(principal.as_bytes());
            bytes.extend_from_slice(&seq.to_be_bytes());
        }
        format!("!{from} {} {}", BASE64.encode(bytes), carried(encoded))
    }

    /// What [`encode`](Self::encode) wrote.
    pub fn decode(text: &str) -> Option<Hints> {
        let mut parts = text.strip_prefix('!')?.splitn(3, ' ');
        let from = parts.next()?.parse().ok()?;
        let bytes = BASE64.decode(parts.next()?).ok()?;
        let (pairs, rest) = bytes.as_chunks::<24>();
        let deliveries = pairs.iter().map(|pair| {
            let (principal, seq) = pair.split_at(16);
            let principal = Uuid::from_slice(principal).ok()?;
            Some(Delivery {
                principal,
                seq: i64::from_be_bytes(seq.try_into().ok()?),
            })
        });
        let deliveries: Option<Vec<Delivery>> = deliveries.collect();
        let encoded = tail_in(parts.next()?);
        rest.is_empty().then_some(Hints {
            from,
            deliveries: deliveries?,
            encoded,
        })
    }
}

/// A frame that is no event: typing, streams. It is in no inbox, and nobody asks for it again.
#[derive(Clone)]
pub struct EphemeralEvent {
    /// What part of which stream it is, if of one.
    pub part: Option<Arc<StreamPosition>>,
    /// The frame.
    pub text: Arc<str>,
}

/// A place in a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamPosition {
    /// Whose stream.
    pub agent: AgentId,
    /// The agent's name for it.
    pub stream: StreamId,
    /// Where it is heard.
    pub conversation: ConversationId,
    /// What happens to it.
    pub action: StreamAction,
}

/// What happens to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamAction {
    /// It begins, or begins anew.
    Begin,
    /// Its nth delta.
    Delta(u64),
    /// It has become a message.
    Ended,
    /// It was cancelled.
    Cancelled,
    /// An earlier delta, for a node that asked; not for sockets.
    Earlier(u64),
    /// The end of what was asked for, which was from this delta on.
    Replayed(u64),
}

/// An [`EphemeralEvent`] on its way to other nodes.
pub struct EphemeralEnvelope {
    /// Who says so.
    pub from: NodeId,
    /// To whom; nobody on a channel that says it.
    pub to: Vec<Uuid>,
    /// What.
    pub ephemeral: EphemeralEvent,
}

impl EphemeralEnvelope {
    /// `~<node> <base64 of principals> <part>\n<frame>`
    pub fn encode(from: NodeId, to: &[Uuid], ephemeral: &EphemeralEvent) -> String {
        let to = BASE64.encode(
            to.iter()
                .flat_map(|one| *one.as_bytes())
                .collect::<Vec<u8>>(),
        );
        let part = serde_json::to_string(&ephemeral.part.as_deref()).unwrap_or_default();
        format!("~{from} {to} {part}\n{}", ephemeral.text)
    }

    /// What [`encode`](Self::encode) wrote.
    pub fn decode(text: &str) -> Option<EphemeralEnvelope> {
        let (head, frame) = text.strip_prefix('~')?.split_once('\n')?;
        let mut parts = head.splitn(3, ' ');
        let from = parts.next()?.parse().ok()?;
        let bytes = BASE64.decode(parts.next()?).ok()?;
        let (ids, rest) = bytes.as_chunks::<16>();
        let to = ids.iter().map(|id| Uuid::from_bytes(*id)).collect();
        let part: Option<StreamPosition> = serde_json::from_str(parts.next()?).ok()?;
        let ephemeral = EphemeralEvent {
            part: part.map(Arc::new),
            text: frame.into(),
        };
        rest.is_empty().then_some(EphemeralEnvelope {
            from,
            to,
            ephemeral,
        })
    }
}

/// An order to every node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ControlMessage {
    /// These sessions or tokens no longer count; their sockets are to be closed.
    Invalidate {
        /// Session and token ids.
        credentials: Vec<Uuid>,
        /// As `session.invalidated` says it.
        reason: String,
    },
    /// A stream begins on the node that says so; whoever held it before must forget it.
    StreamMoved {
        /// Its new home.
        to: NodeId,
        /// Whose stream.
        agent: AgentId,
        /// Which.
        stream: StreamId,
    },
    /// A stream has become a message on another node than its own.
    StreamEnded {
        /// Where.
        by: NodeId,
        /// Whose stream.
        agent: AgentId,
        /// Which.
        stream: StreamId,
        /// Where it is heard.
        conversation: ConversationId,
        /// The frame that says so.
        text: String,
        /// Whether that node has told the listeners.
        told: bool,
    },
    /// Whoever holds the stream that is meant is to tell that node what has been said in it.
    StreamWanted(Wanted),
}

/// A question for a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// Who asks.
    pub by: NodeId,
    /// For whom: the stream is one that it may hear.
    pub listener: Uuid,
    /// Its name.
    pub stream: StreamId,
    /// The first delta that is wanted.
    pub from: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, random::Random};

    fn node() -> NodeId {
        NodeId::generate(&Random::seeded(Clock::default(), [1; 32]))
    }

    #[test]
    fn a_hint_carries_a_small_event_and_announces_a_large_one() {
        let node = node();
        let small: EncodedEvent = r#""data":{"text":"a b  c"}"#.into();
        let hint = Hint::decode(&Hint::encode(node, 7, &small)).expect("a hint");
        assert_eq!(
            (hint.from, hint.seq, hint.encoded.as_deref()),
            (node, 7, Some(&*small))
        );
        let large: EncodedEvent = "x".repeat(MAX_HINT_EVENT_BYTES + 1).into();
        assert!(
            Hint::decode(&Hint::encode(node, 8, &large))
                .expect("a hint")
                .encoded
                .is_none()
        );
        for junk in ["", " ", "x 1 y", "01ARZ3NDEKTSV4RRFFQ69G5FAV"] {
            assert!(Hint::decode(junk).is_none(), "{junk:?}");
        }
    }

    #[test]
    fn many_hints_are_one_message() {
        let encoded: EncodedEvent = r#""data":{"text":"a b"}"#.into();
        let of = |n| Delivery {
            principal: Uuid::from_u128(n),
            seq: i64::try_from(n).expect("small"),
        };
        let text = Hints::encode(node(), &[of(1), of(2), of(500)], &encoded);
        let hints = Hints::decode(&text).expect("hints");
        let pairs: Vec<_> = hints
            .deliveries
            .iter()
            .map(|one| (one.principal.as_u128(), one.seq))
            .collect();
        assert_eq!(
            (pairs, hints.encoded.as_deref()),
            (vec![(1, 1), (2, 2), (500, 500)], Some(&*encoded))
        );
        for junk in ["", "!", "! x", &text[1..], &text.replace(' ', " A")] {
            assert!(Hints::decode(junk).is_none(), "{junk:?}");
        }
    }

    #[test]
    fn a_whisper_keeps_its_frame_as_it_is() {
        let random = Random::seeded(Clock::default(), [2; 32]);
        let part = StreamPosition {
            agent: AgentId::generate(&random),
            stream: "s-1".parse().expect("a name"),
            conversation: ConversationId::generate(&random),
            action: StreamAction::Delta(7),
        };
        let ephemeral = EphemeralEvent {
            part: Some(Arc::new(part)),
            text: "{\"a\":\"b c\n\"}".into(),
        };
        let to = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let envelope =
            EphemeralEnvelope::decode(&EphemeralEnvelope::encode(node(), &to, &ephemeral))
                .expect("a whisper");
        assert_eq!(
            (envelope.to.as_slice(), &*envelope.ephemeral.text),
            (&to[..], "{\"a\":\"b c\n\"}")
        );
        assert_eq!(
            envelope.ephemeral.part.expect("a part").action,
            StreamAction::Delta(7)
        );
        let bare = EphemeralEvent {
            part: None,
            text: "{}".into(),
        };
        let envelope = EphemeralEnvelope::decode(&EphemeralEnvelope::encode(node(), &[], &bare))
            .expect("a whisper");
        assert!(envelope.to.is_empty() && envelope.ephemeral.part.is_none());
        assert!(EphemeralEnvelope::decode("~x").is_none());
    }
}
