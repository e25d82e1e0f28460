//! Passwords, keys and ids of the dev cluster.

use rand::{Rng, RngExt, distr::Alphanumeric};

pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    generator().fill_bytes(&mut bytes);
    bytes
}

/// `n` characters of 0-9 A-Z a-z.
pub fn base62(n: usize) -> String {
    let characters = generator().sample_iter(Alphanumeric).take(n);
    characters.map(char::from).collect()
}

/// The operating system seeds this generator.
#[expect(
    clippy::disallowed_methods,
    reason = "the rule is for the server, whose tests move time and chance"
)]
fn generator() -> impl Rng {
    rand::rng()
}
