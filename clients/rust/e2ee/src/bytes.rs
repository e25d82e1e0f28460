//! Joining and reading bytes, and the two primitives that everything uses: HKDF and AES-256-GCM.

use aes_gcm::{
    Aes256Gcm, KeyInit,
    aead::{Aead, Payload},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use hkdf::Hkdf;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{Error, Result};

/// The tag at the end of a GCM ciphertext.
pub(crate) const TAG_BYTES: usize = 16;

/// The prefix that separates one use of a key from every other: `blindpipe/1/<name>` and a zero.
pub(crate) fn label(name: &str) -> Vec<u8> {
    [b"blindpipe/1/", name.as_bytes(), &[0]].concat()
}

/// A length of two bytes and the bytes.
pub(crate) fn prefixed(bytes: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(bytes.len()).map_err(|_| Error::Malformed)?;
    Ok([&length.to_be_bytes()[..], bytes].concat())
}

pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// HKDF with SHA-256; an empty `salt` is none.
pub(crate) fn hkdf<const N: usize>(ikm: &[u8], salt: &[u8], info: &[u8]) -> Zeroizing<[u8; N]> {
    let mut out = Zeroizing::new([0; N]);
    Hkdf::<Sha256>::new(Some(salt), ikm)
        .expand(info, &mut *out)
        .expect("far below 255 blocks");
    out
}

pub(crate) fn gcm_seal(key: &[u8], nonce: &[u8], aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
    let nonce: [u8; 12] = nonce.try_into().expect("12 bytes");
    let payload = Payload {
        msg: plaintext,
        aad,
    };
    cipher(key)
        .encrypt(&nonce.into(), payload)
        .expect("shorter than 64 GiB")
}

pub(crate) fn gcm_open(
    key: &[u8],
    nonce: &[u8],
    aad: &[u8],
    ciphertext: &[u8],
) -> Result<Zeroizing<Vec<u8>>> {
    let nonce: [u8; 12] = nonce.try_into().expect("12 bytes");
    let payload = Payload {
        msg: ciphertext,
        aad,
    };
    let opened = cipher(key).decrypt(&nonce.into(), payload);
    opened.map(Zeroizing::new).map_err(|_| Error::BadCiphertext)
}

fn cipher(key: &[u8]) -> Aes256Gcm {
    Aes256Gcm::new_from_slice(key).expect("32 bytes")
}

/// Standard base64, padded; what has another spelling is refused.
///
/// # Errors
///
/// `malformed`.
pub fn from_base64(text: &str) -> Result<Vec<u8>> {
    STANDARD.decode(text).map_err(|_| Error::Malformed)
}

/// Standard base64, padded.
#[must_use]
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn hex<const N: usize>(bytes: [u8; N]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let digit = |at: usize| char::from(digits[at]).to_digit(16);
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (n, byte) in bytes.iter_mut().enumerate() {
        let value = digit(2 * n)? << 4 | digit(2 * n + 1)?;
        *byte = u8::try_from(value).ok()?;
    }
    Some(bytes)
}

/// Takes fields from the front of some bytes; a missing field is `malformed`.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Error::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("N bytes"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }
}
