//! The hash of a list of keys, for the log of keys and the view of an envelope.

use crate::{
    Principal, PublicKeys, Result, View,
    bytes::{label, prefixed, sha256},
};

/// A key that is not retired, as its list shows it.
#[derive(Clone, Copy, Debug)]
pub struct ListedKey<'a> {
    pub device_id: Option<&'a str>,
    pub keys: &'a PublicKeys,
    pub schemes: &'a [&'a str],
}

/// Chains the list after the list before it (zeros for the first).
///
/// # Errors
///
/// `malformed` for a list or a name that is too long.
pub fn keys_hash(before: [u8; 32], list: &[ListedKey<'_>]) -> Result<[u8; 32]> {
    let mut entries = list.iter().map(entry).collect::<Result<Vec<_>>>()?;
    entries.sort();
    let count = u16::try_from(entries.len()).map_err(|_| crate::Error::Malformed)?;
    let label = label("log-keys");
    Ok(sha256(&[
        &label,
        &before,
        &count.to_be_bytes(),
        &entries.concat(),
    ]))
}

fn entry(key: &ListedKey<'_>) -> Result<Vec<u8>> {
    let mut schemes = key.schemes.to_vec();
    schemes.sort_unstable();
    let device = prefixed(key.device_id.unwrap_or_default().as_bytes())?;
    let schemes = prefixed(schemes.join(",").as_bytes())?;
    let keys = key.keys;
    Ok([
        &device,
        &keys.public_key()[..],
        keys.signing_public_key(),
        &schemes,
    ]
    .concat())
}

/// The leaf of a list in the log.
#[must_use]
pub fn leaf(owner: Principal, list_version: u32, keys_hash: [u8; 32]) -> [u8; 69] {
    let mut leaf = [1; 69];
    leaf[1..33].copy_from_slice(&log_label(owner));
    leaf[33..37].copy_from_slice(&list_version.to_be_bytes());
    leaf[37..].copy_from_slice(&keys_hash);
    leaf
}

/// The name of a principal in the log.
#[must_use]
pub fn log_label(owner: Principal) -> [u8; 32] {
    sha256(&[&label("log-label"), &owner.to_bytes()])
}

/// The hash of a leaf, as in RFC 6962.
#[must_use]
pub fn leaf_hash(leaf: &[u8; 69]) -> [u8; 32] {
    sha256(&[&[0], leaf])
}

/// A list in the view of an envelope.
#[must_use]
pub fn view(list_version: u32, hash: &[u8; 32]) -> View {
    let mut keys_hash = [0; 16];
    keys_hash.copy_from_slice(&hash[..16]);
    View {
        list_version,
        keys_hash,
    }
}
