//! The choices of a seed.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

/// A stream of choices; clones share it. SplitMix64.
#[derive(Clone)]
pub struct Chance(Arc<Mutex<u64>>);

impl Chance {
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not share their streams.
        Chance(Arc::new(Mutex::new(
            seed.wrapping_mul(0xD134_2543_DE82_EF95),
        )))
    }

    pub fn next(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `n`, which is not 0.
    pub fn below(&self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("it fits")
    }

    pub fn percent(&self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// A time between two, in milliseconds.
    pub fn ms(&self, from: usize, to: usize) -> Duration {
        Duration::from_millis((from + self.below(to - from)) as u64)
    }
}
