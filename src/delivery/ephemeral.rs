//! Ephemeral events: frames for sockets that no inbox holds. Their loss is final.
//!
//! Delivery carries them between nodes and queues them for subscriptions. Only the feature that
//! made a key understands it ([`EphemeralHandler`]).
//!
//! Why: ADR 18.

use std::{any::Any, collections::VecDeque, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};

use crate::{
    ids::{NodeId, PrincipalId},
    limits::quotas::{MAX_EPHEMERAL_BYTES, MAX_EPHEMERAL_FRAMES},
    metrics,
};

/// A frame that no inbox holds.
#[derive(Clone)]
pub struct EphemeralEvent {
    /// The feature's key, if its events have keys.
    pub key: Option<Arc<EphemeralKey>>,
    /// The frame's JSON.
    pub body: Arc<str>,
}

impl EphemeralEvent {
    /// A frame without a key.
    pub fn new(body: Arc<str>) -> Self {
        EphemeralEvent { key: None, body }
    }

    /// The key as `T`, if there is a key of this type.
    pub fn key<T: 'static>(&self) -> Option<&T> {
        self.key.as_ref()?.value.downcast_ref()
    }
}

/// A key in two forms: the text that nodes exchange, and the value that its feature reads.
pub struct EphemeralKey {
    text: Box<str>,
    value: Box<dyn Any + Send + Sync>,
}

impl EphemeralKey {
    /// `text` is JSON on one line that [`EphemeralHandler::decode_key`] reads back into `value`.
    pub fn new<T: Send + Sync + 'static>(text: String, value: T) -> Self {
        EphemeralKey {
            text: text.into(),
            value: Box::new(value),
        }
    }
}

/// The feature that understands the keys that delivery carries.
pub trait EphemeralHandler: Send + Sync {
    /// Reads a key that the feature wrote on another node.
    fn decode_key(&self, text: &str) -> Option<EphemeralKey>;
    /// Records an event of another node before the subscriptions of this node get it.
    fn apply_remote(&self, event: &EphemeralEvent);
}

/// The handler of a process without that feature.
pub struct NoEphemeralEvents;

impl EphemeralHandler for NoEphemeralEvents {
    fn decode_key(&self, _: &str) -> Option<EphemeralKey> {
        None
    }

    fn apply_remote(&self, _: &EphemeralEvent) {}
}

/// An [`EphemeralEvent`] on its way to other nodes.
pub struct EphemeralEnvelope {
    /// The node that published it.
    pub from: NodeId,
    /// The recipients that the receiving node serves.
    pub to: Vec<PrincipalId>,
    pub event: EphemeralEvent,
}

impl EphemeralEnvelope {
    /// `~<node> <base64 of principals> <key, or null>\n<frame>`
    pub fn encode(from: NodeId, to: &[PrincipalId], event: &EphemeralEvent) -> String {
        let to = BASE64.encode(
            to.iter()
                .flat_map(|one| *one.as_bytes())
                .collect::<Vec<u8>>(),
        );
        let key = event.key.as_ref().map_or("null", |key| &key.text);
        format!("~{from} {to} {key}\n{}", event.body)
    }

    /// Reads the output of [`encode`](Self::encode).
    pub fn decode(text: &str, handler: &dyn EphemeralHandler) -> Option<EphemeralEnvelope> {
        let (head, body) = text.strip_prefix('~')?.split_once('\n')?;
        let mut parts = head.splitn(3, ' ');
        let from = parts.next()?.parse().ok()?;
        let bytes = BASE64.decode(parts.next()?).ok()?;
        let (ids, rest) = bytes.as_chunks::<16>();
        let to = ids.iter().copied().map(PrincipalId::from_bytes).collect();
        let key = match parts.next()? {
            "null" => None,
            key => Some(Arc::new(handler.decode_key(key)?)),
        };
        let event = EphemeralEvent {
            key,
            body: body.into(),
        };
        rest.is_empty()
            .then_some(EphemeralEnvelope { from, to, event })
    }
}

/// The ephemeral events that wait for a subscription, in a bounded queue that drops the excess.
#[derive(Default)]
pub struct EphemeralQueue {
    events: VecDeque<EphemeralEvent>,
    bytes: usize,
}

impl EphemeralQueue {
    /// The number of waiting events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// The bytes of the waiting events.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues an event. False if it was dropped, which also happens when the surrounding mailbox
    /// `is_full`.
    pub fn push(&mut self, event: &EphemeralEvent, is_full: bool) -> bool {
        let bytes = self.bytes + event.body.len();
        if self.events.len() >= MAX_EPHEMERAL_FRAMES || bytes > MAX_EPHEMERAL_BYTES || is_full {
            metrics::ephemeral_dropped();
            return false;
        }
        self.bytes = bytes;
        self.events.push_back(event.clone());
        true
    }

    /// Empties the queue and returns its events.
    pub fn take(&mut self) -> VecDeque<EphemeralEvent> {
        self.bytes = 0;
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, random::Random};

    /// A feature whose keys are numbers.
    struct Numbers;

    impl EphemeralHandler for Numbers {
        fn decode_key(&self, text: &str) -> Option<EphemeralKey> {
            let number: u64 = text.parse().ok()?;
            Some(EphemeralKey::new(text.to_owned(), number))
        }

        fn apply_remote(&self, _: &EphemeralEvent) {}
    }

    #[test]
    fn an_envelope_keeps_its_frame_as_it_is() {
        let node = NodeId::generate(&Random::seeded(Clock::default(), [1; 32]));
        let decode = |text: &str| EphemeralEnvelope::decode(text, &Numbers);
        let event = EphemeralEvent {
            key: Some(Arc::new(EphemeralKey::new("7".into(), 7_u64))),
            body: "{\"a\":\"b c\n\"}".into(),
        };
        let to = [[1; 16], [2; 16]].map(PrincipalId::from_bytes);
        let envelope = decode(&EphemeralEnvelope::encode(node, &to, &event)).expect("an envelope");
        assert_eq!(
            (envelope.to.as_slice(), &*envelope.event.body),
            (&to[..], "{\"a\":\"b c\n\"}")
        );
        assert_eq!(envelope.event.key::<u64>(), Some(&7));

        let bare = EphemeralEnvelope::encode(node, &[], &EphemeralEvent::new("{}".into()));
        let envelope = decode(&bare).expect("an envelope");
        assert!(envelope.to.is_empty() && envelope.event.key.is_none());
        for junk in ["~x", &bare.replace("null", "seven")] {
            assert!(decode(junk).is_none(), "{junk:?}");
        }
    }
}
