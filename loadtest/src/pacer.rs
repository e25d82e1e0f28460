//! The schedule of an open loop: moments that come whether or not the last answer has.
//!
//! The runtime's own timer counts milliseconds, which is the size of the measured times. This timer
//! is the kernel's high-resolution one, which wakes the event loop like a socket does. No thread
//! spins on a core that the nodes need.

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe;

use crate::Result;

/// Moments at a fixed distance.
pub struct Pacer {
    /// A timer that is read like a pipe: the event loop wakes when there is something to read.
    timer: pipe::Receiver,
    start: Instant,
    period: Duration,
    /// The number of moments that have come but were not taken, and the number of taken ones.
    waiting: u64,
    taken: u64,
}

impl Pacer {
    /// Starts a schedule of `rate` moments per second.
    pub fn start(rate: u64) -> Result<Self> {
        let period = Duration::from_secs(1) / u32::try_from(rate)?;
        let step = Timespec::try_from(period)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let handle = timer.try_clone()?;
        let timer = pipe::Receiver::from_owned_fd_unchecked(timer)?;
        let start = Instant::now();
        let every = Itimerspec {
            it_interval: step,
            it_value: step,
        };
        timerfd_settime(handle, TimerfdTimerFlags::empty(), &every)?;
        Ok(Pacer {
            timer,
            start,
            period,
            waiting: 0,
            taken: 0,
        })
    }

    /// Waits for the next moment and returns its number, from 0. Missed moments come at once; none
    /// is skipped.
    pub async fn next(&mut self) -> Result<u64> {
        while self.waiting == 0 {
            self.timer.readable().await?;
            let mut count = [0; 8];
            match self.timer.try_read(&mut count) {
                Ok(_) => self.waiting = u64::from_ne_bytes(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.waiting -= 1;
        self.taken += 1;
        Ok(self.taken - 1)
    }

    /// The schedule alone, for lookups of moments.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            start: self.start,
            period: self.period,
        }
    }
}

/// The planned time of each moment.
#[derive(Clone, Copy)]
pub struct Schedule {
    start: Instant,
    period: Duration,
}

impl Schedule {
    /// The time of the moment with this number.
    pub fn moment(&self, n: u64) -> Instant {
        self.start
            + Duration::from_nanos(
                (n + 1) * u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX),
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_moment_comes_early_or_is_left_out() {
        let mut pacer = Pacer::start(2000).expect("a timer");
        for n in 0..50 {
            if n == 20 {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(pacer.next().await.expect("a moment"), n);
            // The timer starts shortly after the clock was read.
            assert!(Instant::now() >= pacer.schedule().moment(n));
        }
    }
}
