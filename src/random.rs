//! The only source of randomness: ids, secrets, codes, jitter.

use std::sync::Arc;

use parking_lot::Mutex;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use uuid::Uuid;

use crate::clock::Clock;

/// The digits of base 62.
pub const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A cryptographic generator, with the clock that time-ordered ids need. Clones share it.
#[derive(Clone)]
pub struct Random {
    generator: Arc<Mutex<StdRng>>,
    clock: Clock,
}

impl Random {
    /// A generator seeded by the operating system.
    #[expect(clippy::disallowed_methods, reason = "the home of chance")]
    pub fn new(clock: Clock) -> Self {
        let mut seed = <StdRng as SeedableRng>::Seed::default();
        rand::rng().fill_bytes(&mut seed);
        Self::seeded(clock, seed)
    }

    /// A generator that repeats its sequence for an equal seed.
    pub fn seeded(clock: Clock, seed: [u8; 32]) -> Self {
        Random {
            generator: Arc::new(Mutex::new(StdRng::from_seed(seed))),
            clock,
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut StdRng) -> T) -> T {
        work(&mut self.generator.lock())
    }

    /// 128 bits in the layout of a ULID: 48 bits of milliseconds, 80 random bits.
    pub fn ulid(&self) -> Uuid {
        let ms = u64::try_from(self.clock.now().timestamp_millis()).unwrap_or_default();
        ulid::Ulid::from_parts(ms, self.with(|rng| rng.random())).into()
    }

    /// A UUID of version 7.
    pub fn uuid_v7(&self) -> Uuid {
        let ms = u64::try_from(self.clock.now().timestamp_millis()).unwrap_or_default();
        uuid::Builder::from_unix_timestamp_millis(ms, &self.bytes()).into_uuid()
    }

    /// `N` random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.with(|rng| rng.fill_bytes(&mut bytes));
        bytes
    }

    /// `n` characters of 0-9 A-Z a-z, each equally likely.
    pub fn base62(&self, n: usize) -> String {
        self.with(|rng| {
            (0..n)
                .map(|_| char::from(BASE62[rng.random_range(0..62)]))
                .collect()
        })
    }

    /// A number in `[0, 1)`, for jitter.
    pub fn fraction(&self) -> f64 {
        self.with(|rng| rng.random())
    }
}
