//! The envelopes that were shown under the ids of messages, to tell what a reply answers.

use std::collections::{HashMap, VecDeque, hash_map};

use blindpipe_e2ee::Id;

/// The messages of a conversation whose envelopes are remembered.
const MAX_ENVELOPES: usize = 10_000;

/// The fingerprint of each message's envelope. The first one counts: a person was shown that one.
#[derive(Default)]
pub(crate) struct Envelopes {
    by_id: HashMap<Id, [u8; 32]>,
    order: VecDeque<Id>,
}

impl Envelopes {
    /// Notes the envelope of a message; the oldest one is forgotten.
    pub(super) fn note(&mut self, message: Id, fingerprint: [u8; 32]) {
        let hash_map::Entry::Vacant(place) = self.by_id.entry(message) else {
            return;
        };
        place.insert(fingerprint);
        self.order.push_back(message);
        if self.order.len() > MAX_ENVELOPES
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }

    pub(super) fn get(&self, message: Id) -> Option<[u8; 32]> {
        self.by_id.get(&message).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_envelope_of_a_message_counts_and_the_oldest_message_is_forgotten() {
        let id = |n: usize| (n as u128).to_be_bytes();
        let mut envelopes = Envelopes::default();
        envelopes.note(id(0), [1; 32]);
        envelopes.note(id(0), [2; 32]);
        assert_eq!(envelopes.get(id(0)), Some([1; 32]));
        for n in 1..=MAX_ENVELOPES {
            envelopes.note(id(n), [3; 32]);
        }
        assert_eq!(envelopes.get(id(0)), None);
        assert_eq!(envelopes.get(id(1)), Some([3; 32]));
        assert_eq!(envelopes.by_id.len(), MAX_ENVELOPES);
    }
}
