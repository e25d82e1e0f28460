//! The events that wait in this process, with a bound. The rest of a backlog stays on the server.

use tokio::sync::watch;

const MAX_WAITING_EVENTS: usize = 2_000;
/// Thirty-two of the largest messages.
const MAX_WAITING_BYTES: usize = 32 << 20;
/// A connection that was left is made again below this part of the bounds.
const RESUME_BELOW_PART: usize = 10;

#[derive(Clone, Copy, Default)]
struct Waiting {
    events: usize,
    bytes: usize,
}

/// Counts the events that came and are not handled.
#[derive(Default)]
pub(crate) struct Load(watch::Sender<Waiting>);

impl Load {
    /// Whether nothing more is to be read.
    pub(crate) fn is_full(&self) -> bool {
        let Waiting { events, bytes } = *self.0.borrow();
        events >= MAX_WAITING_EVENTS || bytes >= MAX_WAITING_BYTES
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.0.send_modify(|waiting| {
            waiting.events += 1;
            waiting.bytes += bytes;
        });
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.0.send_modify(|waiting| {
            waiting.events -= 1;
            waiting.bytes -= bytes;
        });
    }

    /// Returns at once, or when few enough events wait.
    pub(crate) async fn room(&self) {
        if self.is_full() {
            let is_low = |waiting: &Waiting| {
                waiting.events * RESUME_BELOW_PART < MAX_WAITING_EVENTS
                    && waiting.bytes * RESUME_BELOW_PART < MAX_WAITING_BYTES
            };
            self.0.subscribe().wait_for(is_low).await.ok();
        }
    }

    /// Returns when no event waits.
    pub(crate) async fn none(&self) {
        let mut waiting = self.0.subscribe();
        waiting.wait_for(|waiting| waiting.events == 0).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn few_events_or_few_bytes_are_too_many() {
        for (events, bytes) in [(2_000, 1), (32, 1 << 20)] {
            let load = Load::default();
            for n in 0..events {
                assert!(!load.is_full(), "{n} of {bytes}");
                assert!(load.room().now_or_never().is_some());
                load.add(bytes);
            }
            assert!(load.is_full());
            let mut room = Box::pin(load.room());
            let mut left = events;
            while room.as_mut().now_or_never().is_none() {
                load.remove(bytes);
                left -= 1;
            }
            assert!(left * 10 < events && (left + 1) * 10 >= events, "{left}");
            assert!(load.none().now_or_never().is_none());
            (0..left).for_each(|_| load.remove(bytes));
            assert!(load.none().now_or_never().is_some());
        }
    }
}
