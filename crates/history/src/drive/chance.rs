//! Random choices that a seed repeats.

/// A small generator whose seed repeats the plan.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// A number below `most`.
    pub(super) fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or_default() % most.max(1)
    }
}
