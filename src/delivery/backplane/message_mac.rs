//! The MAC of the messages between nodes. Access to Redis is not trusted: a party that can
//! publish there must not reach a client, end a session or hide a message.
//!
//! A signed message is 64 characters of base64 and the text. The base64 holds a MAC of 16 bytes,
//! the sender, the epoch and a number that rises by 1 with every message of the sender on the
//! channel. The MAC covers them, the channel and the text, so a message cannot be changed or moved.
//! A receiver takes each number of a sender and channel a single time, so a message cannot be
//! repeated. A number that it passes over is a message that was lost.
//!
//! Why: ADR 28.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use parking_lot::Mutex;

use crate::{
    auth::key_ring::{MIN_MAC_BYTES, MacKeyRing},
    auth::server_secret::ServerSecret,
    ids::NodeId,
};

/// Sender, epoch and number.
const HEAD_BYTES: usize = 16 + 8 + 8;
/// The base64 before the text.
const PREFIX_CHARS: usize = ((MIN_MAC_BYTES + HEAD_BYTES) * 4).div_ceil(3);
/// Numbers behind the newest of a sender and channel that are still taken.
const REPLAY_WINDOW: u64 = 1_024;
/// Senders and channels that a receiver remembers. A node that starts anew is another sender.
const MAX_SENDERS: usize = 4_096;

/// Signs the messages of a node. Clones share the epoch and the numbers.
#[derive(Clone)]
pub struct MessageSigner {
    node: NodeId,
    keys: MacKeyRing,
    /// The epoch of the inboxes' numbers, as Postgres last said it.
    epoch: Arc<AtomicU64>,
    /// The last number on each channel. A channel is never forgotten: numbers that began anew would
    /// be taken for repeated ones. It costs a hundred bytes per node that this one has met.
    numbers: Arc<Mutex<HashMap<String, u64>>>,
}

impl MessageSigner {
    /// Signs for `node` in `epoch`.
    pub fn new(node: NodeId, secret: &ServerSecret, epoch: u64) -> Self {
        MessageSigner {
            node,
            keys: secret.derive("message between nodes"),
            epoch: Arc::new(AtomicU64::new(epoch)),
            numbers: Arc::default(),
        }
    }

    /// The node that signs.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The epoch that this node knows.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Signs in this epoch from now on.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
    }

    fn next_number(&self, channel: &str) -> u64 {
        let mut numbers = self.numbers.lock();
        if let Some(number) = numbers.get_mut(channel) {
            *number += 1;
            return *number;
        }
        numbers.insert(channel.to_owned(), 1);
        1
    }

    /// Signs a text of `epoch` for `channel`.
    pub fn sign(&self, channel: &str, epoch: u64, text: &str) -> String {
        let number = self.next_number(channel);
        let mut prefix = [0; MIN_MAC_BYTES + HEAD_BYTES];
        let (mac, head) = prefix.split_at_mut(MIN_MAC_BYTES);
        head[..16].copy_from_slice(self.node.as_bytes());
        head[16..24].copy_from_slice(&epoch.to_be_bytes());
        head[24..].copy_from_slice(&number.to_be_bytes());
        let whole = self.keys.sign(&[channel.as_bytes(), head, text.as_bytes()]);
        mac.copy_from_slice(&whole[..MIN_MAC_BYTES]);
        let mut signed = String::with_capacity(PREFIX_CHARS + text.len());
        BASE64.encode_string(prefix, &mut signed);
        signed.push_str(text);
        signed
    }
}

/// A message whose MAC is right.
#[derive(Debug, PartialEq, Eq)]
pub struct VerifiedMessage<'a> {
    /// The epoch in which it was signed.
    pub epoch: u64,
    /// The text.
    pub text: &'a str,
    /// The sender's messages on this channel that did not come before this one.
    pub missed: u64,
}

/// Why a message is dropped.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No node signed this text for this channel.
    Unsigned,
    /// A message that was taken before.
    Replayed,
}

/// Verifies what a node receives, and remembers the numbers that it took.
pub struct Verifier {
    keys: MacKeyRing,
    senders: HashMap<String, HashMap<NodeId, ReplayWindow>>,
}

impl Verifier {
    /// Verifies with the keys of `signer`.
    pub fn new(signer: &MessageSigner) -> Self {
        Verifier {
            keys: signer.keys.clone(),
            senders: HashMap::new(),
        }
    }

    /// The text of a message, if a node signed it for `channel` and it comes for the first time.
    pub fn verify<'a>(
        &mut self,
        channel: &str,
        signed: &'a str,
    ) -> Result<VerifiedMessage<'a>, Refusal> {
        let parts = signed.split_at_checked(PREFIX_CHARS);
        let (prefix, text) = parts.ok_or(Refusal::Unsigned)?;
        let prefix = BASE64.decode(prefix).map_err(|_| Refusal::Unsigned)?;
        let parts = prefix.split_at_checked(MIN_MAC_BYTES);
        let (mac, head) = parts.ok_or(Refusal::Unsigned)?;
        let signed = [channel.as_bytes(), head, text.as_bytes()];
        if !self.keys.verify(&signed, mac) {
            return Err(Refusal::Unsigned);
        }
        let (sender, epoch, number) = read(head).ok_or(Refusal::Unsigned)?;
        let senders = match self.senders.get_mut(channel) {
            Some(senders) => senders,
            None => self.senders.entry(channel.to_owned()).or_default(),
        };
        if senders.len() >= MAX_SENDERS && !senders.contains_key(&sender) {
            senders.clear();
        }
        let window = senders.entry(sender).or_default();
        let expected = window.newest + 1;
        if !window.take(number) {
            return Err(Refusal::Replayed);
        }
        Ok(VerifiedMessage {
            epoch,
            text,
            missed: number.saturating_sub(expected),
        })
    }
}

fn read(head: &[u8]) -> Option<(NodeId, u64, u64)> {
    let sender = NodeId::from_bytes(*head.first_chunk()?);
    let (numbers, _) = head.get(16..)?.as_chunks::<8>();
    let [epoch, number] = numbers else {
        return None;
    };
    Some((
        sender,
        u64::from_be_bytes(*epoch),
        u64::from_be_bytes(*number),
    ))
}

/// The numbers of one sender that were taken: the newest, and a bit for each of those behind it.
struct ReplayWindow {
    newest: u64,
    taken: [u64; REPLAY_WINDOW as usize / 64],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        ReplayWindow {
            newest: 0,
            taken: [0; REPLAY_WINDOW as usize / 64],
        }
    }
}

impl ReplayWindow {
    /// Takes a number; false if it was taken before or is too old to tell.
    fn take(&mut self, number: u64) -> bool {
        if number > self.newest {
            let fresh = (self.newest + 1..=number).rev();
            for passed in fresh.take(REPLAY_WINDOW as usize) {
                let (word, bit) = Self::place(passed);
                self.taken[word] &= !bit;
            }
            self.newest = number;
        } else if self.newest - number >= REPLAY_WINDOW {
            return false;
        }
        let (word, bit) = Self::place(number);
        let first = self.taken[word] & bit == 0;
        self.taken[word] |= bit;
        first
    }

    fn place(number: u64) -> (usize, u64) {
        let at = number % REPLAY_WINDOW;
        ((at / 64) as usize, 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, random::Random};

    fn signer(secret: u8) -> MessageSigner {
        let node = NodeId::generate(&Random::seeded(Clock::default(), [1; 32]));
        MessageSigner::new(node, &ServerSecret([vec![secret; 32]].into()), 7)
    }

    #[test]
    fn a_sealed_message_is_opened_on_its_channel_as_it_was() {
        let signer = signer(1);
        let signed = signer.sign("c", 7, "a b\né");
        assert_eq!(signed.len(), PREFIX_CHARS + "a b\né".len());
        let mut verifier = Verifier::new(&signer);
        let refused = Err(Refusal::Unsigned);
        assert_eq!(verifier.verify("d", &signed), refused, "moved");
        for at in 0..signed.len() {
            let mut changed = signed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8_lossy(&changed);
            assert_eq!(verifier.verify("c", &changed), refused, "{at}");
        }
        for junk in ["", "a b\né", &"A".repeat(PREFIX_CHARS), &signed[..60]] {
            assert_eq!(verifier.verify("c", junk), refused, "{junk}");
        }
        let foreign = self::signer(2).sign("c", 7, "a b\né");
        assert_eq!(verifier.verify("c", &foreign), refused);
        let message = verifier.verify("c", &signed).expect("a signed message");
        assert_eq!((message.epoch, message.text), (7, "a b\né"));
        assert_eq!(verifier.verify("c", &signed), Err(Refusal::Replayed));
    }

    #[test]
    fn each_channel_has_its_numbers_and_a_gap_is_counted() {
        let signer = signer(1);
        let mut verifier = Verifier::new(&signer);
        let mut missed = |channel: &str, signed: &str| {
            verifier
                .verify(channel, signed)
                .expect("a signed message")
                .missed
        };
        assert_eq!(missed("c", &signer.sign("c", 7, "first")), 0);
        assert_eq!(missed("d", &signer.sign("d", 7, "first")), 0);
        let late = signer.sign("c", 7, "late");
        signer.sign("c", 7, "lost");
        assert_eq!(missed("c", &signer.sign("c", 7, "next")), 2);
        assert_eq!(missed("c", &late), 0);
        assert_eq!(missed("c", &signer.sign("c", 7, "next")), 0);
        signer.sign("e", 7, "the first is lost");
        assert_eq!(missed("e", &signer.sign("e", 7, "next")), 1);
    }

    #[test]
    fn a_number_is_taken_once_in_any_order() {
        let mut window = ReplayWindow::default();
        for number in [1, 3, 2, 900, 5, 1_100, 5_000, 4_000, 5_001] {
            assert!(window.take(number), "{number}");
            assert!(!window.take(number), "{number} again");
        }
        for late in [3, 3_977, 4_000] {
            assert!(!window.take(late), "{late}");
        }
        assert!(window.take(3_978));
        assert!(window.take(u64::MAX) && window.take(u64::MAX - 1));
        assert!(!window.take(u64::MAX) && !window.take(5_001));
    }
}
