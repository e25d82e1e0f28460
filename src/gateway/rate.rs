//! How fast a client talks.

use std::time::{Duration, Instant};

/// Frames of the current second, by a clock that nobody sets back.
#[derive(Default)]
pub struct Rate {
    since: Option<Instant>,
    frames: u32,
}

impl Rate {
    /// Counts one more; whether that makes more than `most` in this second.
    pub fn over(&mut self, most: u32) -> bool {
        if self
            .since
            .is_none_or(|since| since.elapsed() >= Duration::from_secs(1))
        {
            *self = Rate {
                since: Some(Instant::now()),
                frames: 0,
            };
        }
        self.frames += 1;
        self.frames > most
    }
}
