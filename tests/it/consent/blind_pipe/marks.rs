//! Marks: texts and keys that never leave a client, and every spelling in which they could.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD as BASE64URL},
};
use parking_lot::Mutex;

/// A key of a client.
pub type Key = [u8; 32];

/// The marks of one run.
#[derive(Default)]
pub struct Marks(Mutex<Vec<(String, Vec<u8>)>>);

impl Marks {
    /// A text that nobody but clients may see. It names its purpose.
    pub fn text(&self, purpose: &str) -> String {
        let text = format!("mark of {purpose} {:032x}", rand::random::<u128>());
        self.remember(purpose, text.as_bytes());
        text
    }

    /// A private or shared key.
    pub fn key(&self, purpose: &str) -> Key {
        let key: Key = rand::random();
        self.remember(purpose, &key);
        key
    }

    /// Remembers bytes that nobody but clients may see.
    pub fn remember(&self, purpose: &str, bytes: &[u8]) {
        let mark = (purpose.to_owned(), bytes.to_vec());
        self.0.lock().push(mark);
    }

    /// The spellings of all marks, each with its purpose.
    pub fn spellings(&self) -> Vec<(String, Vec<u8>)> {
        let marks = self.0.lock();
        let mut all = Vec::new();
        for (purpose, bytes) in marks.iter() {
            for (how, text) in spellings(bytes) {
                all.push((format!("{purpose} ({how})"), text));
            }
        }
        all
    }
}

/// The spellings of some bytes. In base64, three places of the first byte give three texts.
fn spellings(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let hex = base16ct::lower::encode_string(bytes);
    let mut all = vec![
        ("raw".to_owned(), bytes.to_vec()),
        ("hex".to_owned(), hex.clone().into_bytes()),
        ("HEX".to_owned(), hex.to_uppercase().into_bytes()),
        ("JSON".to_owned(), serde_json::to_vec(bytes).expect("JSON")),
    ];
    for offset in 0..3_usize {
        let shifted = [&vec![0; offset], bytes].concat();
        // Digits that neighbours of the bytes share are left out.
        let from = (offset * 8).div_ceil(6);
        let to = (shifted.len() * 8) / 6;
        for (name, text) in [
            ("base64", BASE64.encode(&shifted)),
            ("base64url", BASE64URL.encode(&shifted)),
        ] {
            all.push((format!("{name} {offset}"), text.as_bytes()[from..to].into()));
        }
    }
    all
}

/// Encrypts: a random nonce, the ciphertext and its tag.
pub fn seal(key: &Key, plain: &[u8]) -> Vec<u8> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("a key");
    let nonce: [u8; 12] = rand::random();
    let mut sealed = plain.to_vec();
    LessSafeKey::new(key)
        .seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::empty(),
            &mut sealed,
        )
        .expect("sealed");
    [&nonce[..], &sealed].concat()
}

/// Like [`seal`], in base64.
pub fn sealed(key: &Key, plain: &[u8]) -> String {
    BASE64.encode(seal(key, plain))
}

#[test]
fn a_mark_is_found_in_the_middle_of_anything_that_was_encoded() {
    let mark = b"a mark of this length";
    for before in 0..4 {
        let text = [&vec![7; before][..], mark, b"and more"].concat();
        for encoded in [
            text.clone(),
            BASE64.encode(&text).into_bytes(),
            BASE64URL.encode(&text).into_bytes(),
        ] {
            let found = spellings(mark)
                .iter()
                .any(|(_, mark)| encoded.windows(mark.len()).any(|part| part == mark));
            assert!(found, "{before}");
        }
    }
}
