//! Ids that follow from what is answered, so that work done twice is sent once.

use crate::{
    Id, Principal, Result,
    bytes::{label, prefixed, sha256},
};

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Names what is answered, whatever event brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    hash: [u8; 32],
    time: [u8; 6],
}

impl Origin {
    /// An encrypted message: all of this is signed.
    #[must_use]
    pub fn message(conversation: Id, sender: Principal, client_message_id: Id) -> Self {
        let (label, sender) = (label("origin"), sender.to_bytes());
        Self::new(
            &[&label, &conversation, &sender, &client_message_id],
            client_message_id,
        )
    }

    /// Any other event.
    #[must_use]
    pub fn event(event_id: Id) -> Self {
        Self::new(&[&label("event"), &event_id], event_id)
    }

    fn new(parts: &[&[u8]], id: Id) -> Self {
        let mut time = [0; 6];
        time.copy_from_slice(&id[..6]);
        Self {
            hash: sha256(parts),
            time,
        }
    }

    #[must_use]
    pub const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// For the idempotency of other systems.
    #[must_use]
    pub fn key(&self) -> Id {
        self.hash[..16].try_into().expect("16 bytes")
    }

    /// The `client_message_id` of an agent's reply. `name` is its number from 0, or a chosen key.
    ///
    /// # Errors
    ///
    /// `malformed` for a name that is too long.
    pub fn reply(&self, agent: Id, name: &str) -> Result<Id> {
        let name = prefixed(name.as_bytes())?;
        let hash = sha256(&[&label("reply"), &agent, &self.hash, &name]);
        let mut id = [0; 16];
        id[..6].copy_from_slice(&self.time);
        id[6..].copy_from_slice(&hash[..10]);
        Ok(id)
    }
}

/// The id that 26 characters of a ULID name; none if they name none.
#[must_use]
pub fn from_ulid(text: &str) -> Option<Id> {
    let fits = text.len() == 26 && text.as_bytes()[0] <= b'7';
    let mut digits = text.bytes().filter(|_| fits).map(|letter| {
        let place = ALPHABET
            .iter()
            .position(|known| *known == letter.to_ascii_uppercase());
        place.map(|place| place as u128)
    });
    let number = digits.try_fold(0, |number: u128, digit| Some(number << 5 | digit?))?;
    fits.then(|| number.to_be_bytes())
}

/// An id as the 26 characters of a ULID.
#[must_use]
pub fn ulid(id: Id) -> String {
    let number = u128::from_be_bytes(id);
    let digits = (0..26).rev().map(|place| (number >> (5 * place)) & 31);
    digits
        .map(|digit| char::from(ALPHABET[digit as usize]))
        .collect()
}
