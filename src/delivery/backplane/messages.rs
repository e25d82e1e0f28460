//! THE NODE MESSAGES. All of them may be lost, and the reconciler finds everything that matters.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use blindpipe_protocol::revocation::RevocationReason;
use serde::{Deserialize, Serialize};

use crate::{
    events::EncodedEvent,
    ids::{AgentId, CredentialId, NodeId, PrincipalId},
    inbox::InboxHead,
    telemetry::trace::TraceContext,
};

/// A larger body stays in Postgres, and the hint carries only its number.
const MAX_HINT_EVENT_BYTES: usize = 16 * 1024;

fn carried(encoded: &EncodedEvent) -> &str {
    if encoded.len() <= MAX_HINT_EVENT_BYTES {
        encoded
    } else {
        ""
    }
}

fn event_in(text: &str) -> Option<EncodedEvent> {
    Some(text)
        .filter(|encoded| !encoded.is_empty())
        .map(Arc::from)
}

/// The text that says only how many messages the sender has sent to a node.
pub const LAST_SEQUENCE: &str = ".";

/// A hint that inboxes have reached numbers, with the event if it is small.
pub struct Hint {
    /// The node that published it.
    pub from: NodeId,
    /// The inboxes, each with the number that it has reached.
    pub heads: Vec<InboxHead>,
    /// The event; none if it is too large.
    pub encoded: Option<EncodedEvent>,
    /// The trace that it is part of.
    pub trace: Option<TraceContext>,
}

impl Hint {
    /// Encodes as `!<node> <base64 of (principal, number)…> <encoded>`, with `;<traceparent>`
    /// behind the base64 if there is a trace. Nodes read hints by the million, so this is not JSON
    /// around JSON.
    pub fn encode(
        from: NodeId,
        heads: &[InboxHead],
        encoded: &EncodedEvent,
        trace: Option<TraceContext>,
    ) -> String {
        let mut bytes = Vec::with_capacity(heads.len() * 24);
        for InboxHead { principal, seq } in heads {
            bytes.extend_from_slice(principal.as_bytes());
            bytes.extend_from_slice(&seq.to_be_bytes());
        }
        let (inboxes, encoded) = (BASE64.encode(bytes), carried(encoded));
        match trace {
            Some(trace) => format!("!{from} {inboxes};{trace} {encoded}"),
            None => format!("!{from} {inboxes} {encoded}"),
        }
    }

    /// Reads the output of [`encode`](Self::encode).
    pub fn decode(text: &str) -> Option<Hint> {
        let mut parts = text.strip_prefix('!')?.splitn(3, ' ');
        let from = parts.next()?.parse().ok()?;
        let inboxes = parts.next()?;
        let (inboxes, trace) = inboxes.split_once(';').unwrap_or((inboxes, ""));
        let bytes = BASE64.decode(inboxes).ok()?;
        let (pairs, rest) = bytes.as_chunks::<24>();
        let heads = pairs.iter().map(|pair| {
            let (principal, seq) = pair.split_at(16);
            Some(InboxHead {
                principal: PrincipalId::from_bytes(principal.try_into().ok()?),
                seq: i64::from_be_bytes(seq.try_into().ok()?),
            })
        });
        let heads: Option<Vec<InboxHead>> = heads.collect();
        let encoded = event_in(parts.next()?);
        rest.is_empty().then_some(Hint {
            from,
            heads: heads?,
            encoded,
            trace: trace.parse().ok(),
        })
    }
}

/// A message in JSON: to every node, or to those that deliver webhooks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ControlMessage {
    /// These sessions or tokens are revoked, so their subscriptions end.
    Invalidate {
        /// Session and token ids.
        credentials: Vec<CredentialId>,
        /// The reason in `session.invalidated`.
        reason: String,
    },
    /// Turns of webhooks are due, for the nodes that deliver.
    WakeWebhooks {
        /// The node that published it.
        from: NodeId,
        /// The agents with new events whose turns a worker holds.
        held: Vec<AgentId>,
    },
}

/// Maps the reason that another node gives onto a known word. It is never repeated as it came.
pub fn known_reason(reason: &str) -> RevocationReason {
    reason.parse().unwrap_or(RevocationReason::TokenRevoked)
}

/// The reason that a socket is told when the reconciler finds its credential revoked.
pub fn reason_of(session: bool, recorded: &str) -> RevocationReason {
    if session && recorded.is_empty() {
        RevocationReason::Logout
    } else {
        known_reason(recorded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, random::Random};

    fn node() -> NodeId {
        NodeId::generate(&Random::seeded(Clock::default(), [1; 32]))
    }

    #[test]
    fn a_hint_names_its_inboxes_and_carries_a_small_event() {
        let from = node();
        let encoded: EncodedEvent = r#""data":{"text":"a b  c"}"#.into();
        let of = |n: u128| InboxHead {
            principal: PrincipalId::from_bytes(n.to_be_bytes()),
            seq: i64::try_from(n).expect("small"),
        };
        let heads = [of(1), of(2), of(500)];
        let text = Hint::encode(from, &heads, &encoded, None);
        let hint = Hint::decode(&text).expect("a hint");
        let pairs: Vec<_> = hint
            .heads
            .iter()
            .map(|one| (u128::from_be_bytes(*one.principal.as_bytes()), one.seq))
            .collect();
        assert_eq!(
            (hint.from, pairs, hint.encoded.as_deref()),
            (from, vec![(1, 1), (2, 2), (500, 500)], Some(&*encoded))
        );
        assert_eq!(hint.trace, None);
        let known = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let trace: TraceContext = known.parse().expect("a context");
        let traced = Hint::encode(from, &heads, &encoded, Some(trace));
        let traced = Hint::decode(&traced).expect("a hint");
        assert_eq!(traced.encoded.as_deref(), Some(&*encoded));
        assert_eq!((traced.trace, traced.heads.len()), (Some(trace), 3));
        let large: EncodedEvent = "x".repeat(MAX_HINT_EVENT_BYTES + 1).into();
        let hint = Hint::decode(&Hint::encode(from, &heads, &large, None)).expect("a hint");
        assert!(hint.encoded.is_none() && hint.heads.len() == 3);
        for junk in [
            "",
            "!",
            "! x",
            LAST_SEQUENCE,
            &text[1..],
            &text.replace(' ', " A"),
        ] {
            assert!(Hint::decode(junk).is_none(), "{junk:?}");
        }
    }
}
