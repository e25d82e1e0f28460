//! Numbers by chance.

/// Chance that can be had again: the seed is printed, and `TEST_SEED` sets it.
pub struct Dice(u64);

impl Dice {
    #[expect(clippy::print_stdout, reason = "a failure must be repeatable")]
    /// From `TEST_SEED` or at random.
    pub fn new() -> Self {
        let given = std::env::var("TEST_SEED")
            .ok()
            .and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(rand::random);
        println!("TEST_SEED={seed}");
        Dice(seed)
    }

    /// Independent numbers, which follow from these.
    pub fn fork(&mut self) -> Self {
        Dice(self.next())
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
