//! The MAC of what Redis keeps of streams. Access to Redis is not trusted: a party that can write
//! there must not put words into an agent's mouth, nor lead a stream into another conversation.
//!
//! A signed value is a MAC of 16 bytes and the text. The MAC covers the agent, the stream, the
//! stream's life and the part that the text is, so a value cannot be moved.

use bytes::Bytes;

use super::super::id::StreamKey;
use crate::{
    auth::{
        key_ring::{MIN_MAC_BYTES, MacKeyRing},
        server_secret::ServerSecret,
    },
    ids::AgentId,
};

/// The part of a stream that a text is.
#[derive(Clone, Copy)]
pub enum Part {
    /// Its conversation, and what it answers.
    Home,
    /// The delta with this number.
    Delta(u64),
    Checkpoint,
    Status,
}

impl Part {
    fn name(self) -> String {
        match self {
            Part::Home => "home".to_owned(),
            Part::Delta(n) => format!("delta {n}"),
            Part::Checkpoint => "checkpoint".to_owned(),
            Part::Status => "status".to_owned(),
        }
    }
}

/// Signs and verifies. Clones share the keys.
#[derive(Clone)]
pub struct StateMac(MacKeyRing);

impl StateMac {
    pub fn new(secret: &ServerSecret) -> Self {
        StateMac(secret.derive("state of streams"))
    }

    /// Signs a part of the life `life` of a stream.
    pub fn sign(&self, key: &StreamKey, life: &str, part: Part, text: &str) -> Bytes {
        let stream = key.stream.as_str();
        let name = part.name();
        self.signed(
            text,
            &[
                key.agent.0.as_bytes(),
                stream.as_bytes(),
                life.as_bytes(),
                name.as_bytes(),
                text.as_bytes(),
            ],
        )
    }

    /// The text of a part, if a node signed it for this place.
    pub fn verify(&self, key: &StreamKey, life: &str, part: Part, signed: &[u8]) -> Option<String> {
        let (mac, text) = signed.split_at_checked(MIN_MAC_BYTES)?;
        let stream = key.stream.as_str();
        let name = part.name();
        let parts = [
            &key.agent.0.as_bytes()[..],
            stream.as_bytes(),
            life.as_bytes(),
            name.as_bytes(),
            text,
        ];
        self.text_of(mac, &parts, text)
    }

    /// Signs the end of a stream of `agent`. A stop ends streams whose names it does not know.
    pub fn sign_end(&self, agent: AgentId, text: &str) -> Bytes {
        self.signed(text, &[agent.0.as_bytes(), b"end", text.as_bytes()])
    }

    /// The text of an end, if a node signed it for this agent.
    pub fn verify_end(&self, agent: AgentId, signed: &[u8]) -> Option<String> {
        let (mac, text) = signed.split_at_checked(MIN_MAC_BYTES)?;
        self.text_of(mac, &[agent.0.as_bytes(), b"end", text], text)
    }

    fn signed(&self, text: &str, parts: &[&[u8]]) -> Bytes {
        let mac = self.0.sign(parts);
        [&mac[..MIN_MAC_BYTES], text.as_bytes()].concat().into()
    }

    fn text_of(&self, mac: &[u8], parts: &[&[u8]], text: &[u8]) -> Option<String> {
        let is_ours = self.0.verify(parts, mac);
        is_ours.then(|| String::from_utf8(text.to_vec()).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, random::Random};

    #[test]
    fn a_sealed_part_opens_in_its_place_only() {
        let random = Random::seeded(Clock::default(), [5; 32]);
        let state_mac = StateMac::new(&ServerSecret([vec![1; 32]].into()));
        let key = |name: &str| StreamKey {
            agent: AgentId::NIL,
            stream: name.parse().expect("a name"),
        };
        let signed = state_mac.sign(&key("s"), "life", Part::Delta(3), "text");
        let open = |key: &StreamKey, life, part| state_mac.verify(key, life, part, &signed);
        assert_eq!(
            open(&key("s"), "life", Part::Delta(3)).as_deref(),
            Some("text")
        );
        assert_eq!(
            open(&key("t"), "life", Part::Delta(3)),
            None,
            "another stream"
        );
        assert_eq!(
            open(&key("s"), "later", Part::Delta(3)),
            None,
            "another life"
        );
        assert_eq!(
            open(&key("s"), "life", Part::Delta(4)),
            None,
            "another number"
        );
        assert_eq!(
            open(&key("s"), "life", Part::Checkpoint),
            None,
            "another part"
        );
        let other = StreamKey {
            agent: AgentId::generate(&random),
            ..key("s")
        };
        assert_eq!(open(&other, "life", Part::Delta(3)), None, "another agent");
        let end = state_mac.sign_end(other.agent, "{}");
        assert_eq!(
            state_mac.verify_end(other.agent, &end).as_deref(),
            Some("{}")
        );
        assert_eq!(state_mac.verify_end(key("s").agent, &end), None);
        assert_eq!(state_mac.verify_end(other.agent, b"short"), None);
    }
}
