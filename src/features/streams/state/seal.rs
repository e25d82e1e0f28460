//! The seal of what Redis keeps of streams. Access to Redis is not trusted: a party that can write
//! there must not put words into an agent's mouth, nor lead a stream into another conversation.
//!
//! A sealed value is a MAC of 16 bytes and the text. The MAC covers the agent, the stream, the
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

/// Seals and opens. Clones share the keys.
#[derive(Clone)]
pub struct StateSeal(MacKeyRing);

impl StateSeal {
    pub fn new(secret: &ServerSecret) -> Self {
        StateSeal(secret.derive("state of streams"))
    }

    /// Seals a part of the life `life` of a stream.
    pub fn seal(&self, key: &StreamKey, life: &str, part: Part, text: &str) -> Bytes {
        let stream = key.stream.as_str();
        let name = part.name();
        self.sealed(
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

    /// The text of a part, if a node sealed it for this place.
    pub fn open(&self, key: &StreamKey, life: &str, part: Part, sealed: &[u8]) -> Option<String> {
        let (mac, text) = sealed.split_at_checked(MIN_MAC_BYTES)?;
        let stream = key.stream.as_str();
        let name = part.name();
        let parts = [
            &key.agent.0.as_bytes()[..],
            stream.as_bytes(),
            life.as_bytes(),
            name.as_bytes(),
            text,
        ];
        self.opened(mac, &parts, text)
    }

    /// Seals the end of a stream of `agent`. A stop ends streams whose names it does not know.
    pub fn seal_end(&self, agent: AgentId, text: &str) -> Bytes {
        self.sealed(text, &[agent.0.as_bytes(), b"end", text.as_bytes()])
    }

    /// The text of an end, if a node sealed it for this agent.
    pub fn open_end(&self, agent: AgentId, sealed: &[u8]) -> Option<String> {
        let (mac, text) = sealed.split_at_checked(MIN_MAC_BYTES)?;
        self.opened(mac, &[agent.0.as_bytes(), b"end", text], text)
    }

    fn sealed(&self, text: &str, parts: &[&[u8]]) -> Bytes {
        let mac = self.0.sign(parts);
        [&mac[..MIN_MAC_BYTES], text.as_bytes()].concat().into()
    }

    fn opened(&self, mac: &[u8], parts: &[&[u8]], text: &[u8]) -> Option<String> {
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
        let seal = StateSeal::new(&ServerSecret([vec![1; 32]].into()));
        let key = |name: &str| StreamKey {
            agent: AgentId::NIL,
            stream: name.parse().expect("a name"),
        };
        let sealed = seal.seal(&key("s"), "life", Part::Delta(3), "text");
        let open = |key: &StreamKey, life, part| seal.open(key, life, part, &sealed);
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
        let end = seal.seal_end(other.agent, "{}");
        assert_eq!(seal.open_end(other.agent, &end).as_deref(), Some("{}"));
        assert_eq!(seal.open_end(key("s").agent, &end), None);
        assert_eq!(seal.open_end(other.agent, b"short"), None);
    }
}
