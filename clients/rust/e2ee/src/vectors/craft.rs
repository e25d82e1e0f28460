//! Envelopes that no honest client makes: a second, plain implementation of sealing with a place
//! for every fault.

use aes_gcm::{
    Aes256Gcm, KeyInit,
    aead::{Aead, Payload},
};
use blindpipe_e2ee::{Principal, PrivateKeys, Secret, content::padded, envelope::Place};
use hkdf::Hkdf;
use sha2::{Digest, Sha256};

use super::cast::{self, CONVERSATION, EPOCH, TIME};

/// The parts of an envelope; each field can be wrong.
pub struct Craft<'a> {
    pub kind: u8,
    pub lane: u8,
    pub lane_secret: Secret,
    /// The bytes between the commitment and the ciphertext.
    pub tail: Vec<u8>,
    pub slots: Slots<'a>,
    pub sender: Principal,
    pub keys: PrivateKeys,
    pub place: Place,
    pub content: Vec<u8>,
    /// Replaces the computed padded length, and the byte it is filled with.
    pub padding: Option<(usize, u8)>,
    pub signature: Option<[u8; 64]>,
    pub salt: [u8; 16],
}

/// The inputs of the last step, which encrypts the plaintext.
pub struct Parts {
    pub header: Vec<u8>,
    pub key: Vec<u8>,
    pub nonce: Vec<u8>,
    pub aad: Vec<u8>,
    pub plaintext: Vec<u8>,
}

/// Agents with the message key that each slot gives; none gives the right one.
pub type Slots<'a> = &'a [(Secret, [u8; 16], Option<[u8; 32]>)];

impl Craft<'_> {
    /// An honest message to everyone.
    pub fn honest() -> Self {
        Craft {
            kind: 1,
            lane: 0,
            lane_secret: cast::epoch_key().everyone().expect("the secret"),
            tail: Vec::new(),
            slots: &[],
            sender: cast::AS_USER,
            keys: cast::device(),
            place: Place::Message {
                client_message_id: cast::MESSAGE,
                in_reply_to: None,
            },
            content: "{\"type\":\"text\",\"text\":\"Grüße\"}".into(),
            padding: None,
            signature: None,
            salt: [0x0d; 16],
        }
    }

    pub fn seal(&self) -> Vec<u8> {
        let parts = self.parts();
        let sealed = gcm(&parts.key, &parts.nonce, &parts.aad, &parts.plaintext);
        [parts.header, sealed].concat()
    }

    pub fn parts(&self) -> Parts {
        let message: [u8; 32] = derive(self.lane_secret.expose(), &self.salt, "message");
        let keys: [u8; 76] = derive(&message, &[], "content");
        let mut header = vec![1, self.kind, self.lane, self.slots.len() as u8];
        header.extend(EPOCH.to_be_bytes());
        header.extend(cast::epoch_key().sid());
        header.extend(self.keys.key_id());
        header.extend(self.salt);
        header.extend(&keys[44..]);
        let fixed = header.clone();
        header.extend(&self.tail);
        for (lane, agent, other) in self.slots {
            let slot: [u8; 44] = derive(lane.expose(), &self.salt, "slot");
            header.extend(agent);
            header.extend(gcm(
                &slot[..32],
                &slot[32..],
                &fixed,
                &other.unwrap_or(message),
            ));
        }
        let context = self.place.context().expect("a context");
        let sender = self.sender.to_bytes();
        let aad = [&label("aad"), &header, &CONVERSATION[..], &sender, &context].concat();
        Parts {
            plaintext: self.plaintext(&aad),
            key: keys[..32].to_vec(),
            nonce: keys[32..44].to_vec(),
            header,
            aad,
        }
    }

    fn plaintext(&self, aad: &[u8]) -> Vec<u8> {
        let (hash, time) = (Sha256::digest(aad), TIME.to_be_bytes());
        let text = [&label("sign"), &hash[..], &time, &[0; 20], &self.content].concat();
        let signature = self.signature.unwrap_or_else(|| self.keys.sign(&text));
        let size = (self.content.len() as u32).to_be_bytes();
        let mut plaintext = [&signature[..], &time, &[0; 20], &size, &self.content].concat();
        let exact = (padded(plaintext.len(), 128), 0);
        let (length, filling) = self.padding.unwrap_or(exact);
        plaintext.resize(length, filling);
        plaintext
    }
}

fn label(name: &str) -> Vec<u8> {
    format!("blindpipe/1/{name}\0").into_bytes()
}

fn derive<const N: usize>(ikm: &[u8], salt: &[u8], name: &str) -> [u8; N] {
    let mut out = [0; N];
    let expanded = Hkdf::<Sha256>::new(Some(salt), ikm).expand(&label(name), &mut out);
    expanded.expect("short");
    out
}

pub fn gcm(key: &[u8], nonce: &[u8], aad: &[u8], msg: &[u8]) -> Vec<u8> {
    let nonce: [u8; 12] = nonce.try_into().expect("12 bytes");
    let cipher = Aes256Gcm::new_from_slice(key).expect("32 bytes");
    cipher
        .encrypt(&nonce.into(), Payload { msg, aad })
        .expect("short")
}
