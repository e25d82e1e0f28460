//! Files: encrypted in chunks, each of which knows its place and whether it is the last.

use rand_core::CryptoRng;
use zeroize::Zeroizing;

use crate::{
    Error, Result, Secret,
    bytes::{Reader, TAG_BYTES, gcm_open, gcm_seal, hkdf, label, sha256},
};

const MAGIC: &[u8; 4] = b"BPF1";
const SALT_BYTES: usize = 16;
/// How much content is in a chunk that is not the last.
pub const CHUNK_BYTES: usize = 65_536;

/// An encrypted file, with the key and the hash that the message carries.
#[derive(Debug)]
pub struct SealedFile {
    pub bytes: Vec<u8>,
    pub key: Secret,
    /// Of `bytes`.
    pub sha256: [u8; 32],
}

/// Encrypts under a fresh key and salt: both are new for every upload.
pub fn seal(content: &[u8], rng: &mut impl CryptoRng) -> SealedFile {
    let key = Secret::random(rng);
    let mut salt = [0; 16];
    rng.fill_bytes(&mut salt);
    let bytes = seal_with(content, &key, salt);
    let sha256 = sha256(&[&bytes]);
    SealedFile { bytes, key, sha256 }
}

/// Encrypts under a given key and salt. One pair of them is for one content.
pub(crate) fn seal_with(content: &[u8], key: &Secret, salt: [u8; 16]) -> Vec<u8> {
    let file_key = file_key(key, &salt);
    let mut file = [&MAGIC[..], &salt].concat();
    let last = content.len().saturating_sub(1) / CHUNK_BYTES;
    for index in 0..=last {
        let start = index * CHUNK_BYTES;
        let chunk = &content[start..content.len().min(start + CHUNK_BYTES)];
        file.extend(gcm_seal(
            &*file_key,
            &nonce(index, index == last),
            &[],
            chunk,
        ));
    }
    file
}

/// Decrypts a file whose hash the message told.
///
/// # Errors
///
/// `bad_ciphertext` if the hash or a chunk does not fit, or chunks are missing; `unknown_version`
/// and `malformed`.
pub fn open(file: &[u8], key: &Secret, sha256_told: &[u8; 32]) -> Result<Vec<u8>> {
    if sha256(&[file]) != *sha256_told {
        return Err(Error::BadCiphertext);
    }
    open_chunks(file, key)
}

/// Decrypts a file whose hash was checked before, say while it was fetched.
///
/// # Errors
///
/// As [`open`].
pub fn open_chunks(file: &[u8], key: &Secret) -> Result<Vec<u8>> {
    let mut at = Reader(file);
    if at.array()? != *MAGIC {
        return Err(Error::UnknownVersion);
    }
    let (salt, chunks) = (at.take(SALT_BYTES)?, at.0);
    let file_key = file_key(key, salt);
    let mut content = Vec::with_capacity(chunks.len());
    let last = chunks.len().saturating_sub(1) / (CHUNK_BYTES + TAG_BYTES);
    for index in 0..=last {
        let start = index * (CHUNK_BYTES + TAG_BYTES);
        let end = chunks.len().min(start + CHUNK_BYTES + TAG_BYTES);
        let chunk = gcm_open(
            &*file_key,
            &nonce(index, index == last),
            &[],
            &chunks[start..end],
        )?;
        // Only an empty file has an empty chunk.
        if chunk.is_empty() && index > 0 {
            return Err(Error::Malformed);
        }
        content.extend_from_slice(&chunk);
    }
    Ok(content)
}

fn file_key(key: &Secret, salt: &[u8]) -> Zeroizing<[u8; 32]> {
    hkdf(key.expose(), salt, &label("file"))
}

/// The number of the chunk in 11 bytes, and 1 if it is the last.
fn nonce(index: usize, last: bool) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[3..11].copy_from_slice(&(index as u64).to_be_bytes());
    nonce[11] = u8::from(last);
    nonce
}
