//! Safety numbers: sixty digits that two people compare, of all keys of both.

use sha2::{Digest, Sha512};

use crate::{Principal, PublicKeys, bytes::label};

/// A side's thirty digits, in six groups. The order of the keys does not matter.
#[must_use]
pub fn half(owner: Principal, keys: &[PublicKeys]) -> String {
    let mut pairs: Vec<_> = keys
        .iter()
        .map(|keys| [*keys.public_key(), *keys.signing_public_key()])
        .collect();
    pairs.sort_unstable();
    pairs.dedup();
    let hash = Sha512::new()
        .chain_update(label("safety"))
        .chain_update(owner.to_bytes())
        .chain_update(pairs.as_flattened().as_flattened())
        .finalize();
    let groups = hash.chunks_exact(5).take(6).map(|five| {
        let number = five
            .iter()
            .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        format!("{:05}", number % 100_000)
    });
    groups.collect::<Vec<_>>().join(" ")
}

/// The number of two sides, the same on both.
#[must_use]
pub fn number(one: (Principal, &[PublicKeys]), other: (Principal, &[PublicKeys])) -> String {
    let mut halves = [half(one.0, one.1), half(other.0, other.1)];
    halves.sort();
    halves.join(" ")
}
