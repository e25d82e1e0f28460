//! The rate of a client's frames.

use std::time::{Duration, Instant};

/// The number of frames in the current second of a monotonic clock.
#[derive(Default)]
pub struct Rate {
    since: Option<Instant>,
    frames: u32,
}

impl Rate {
    /// Counts a frame; whether there are more than `max_frames` in this second.
    pub fn over(&mut self, max_frames: u32) -> bool {
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
        self.frames > max_frames
    }
}
