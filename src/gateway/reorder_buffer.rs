//! Events that arrive before their turn. Hints of several nodes overtake each other, so a missing
//! event most likely arrives within milliseconds. Reading the inbox at once would be a query per
//! subscription of a lively conversation.
//!
//! Why: ADR 7.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::{
    delivery::subscription::Item, events::EncodedEvent, limits::quotas::MAX_MAILBOX_FRAMES,
    planted::PlantedBug,
};

/// Wait for a missing event before the inbox is read. It is much longer than hints take on a busy
/// machine. A shorter wait would read more, and reading delays hints further.
const GAP_TIMEOUT: Duration = Duration::from_millis(250);

/// Events that cannot be sent yet.
#[derive(Default)]
pub struct ReorderBuffer {
    held: BTreeMap<i64, Option<EncodedEvent>>,
    /// The time until which a missing event may still arrive by itself.
    until: Option<Instant>,
}

impl ReorderBuffer {
    /// Holds an event that has arrived.
    pub fn hold(&mut self, Item { seq, encoded }: Item) {
        self.held.insert(seq, encoded);
    }

    /// The event after `sent`, if it has arrived. The inner `None` means that its body did not come
    /// along.
    pub fn next(&mut self, sent: i64) -> Option<Option<EncodedEvent>> {
        while let Some(first) = self
            .held
            .first_entry()
            .filter(|first| *first.key() <= sent + 1 || PlantedBug::HintIsTruth.is_planted())
        {
            let (seq, encoded) = first.remove_entry();
            if seq == sent + 1 || seq > sent && PlantedBug::HintIsTruth.is_planted() {
                self.until = None;
                return Some(encoded);
            }
        }
        None
    }

    /// Waits for a missing event. False after a wait that was long enough, or if too many events
    /// have piled up.
    pub fn wait(&mut self) -> bool {
        let until = *self
            .until
            .get_or_insert_with(|| Instant::now() + GAP_TIMEOUT);
        self.held.len() < MAX_MAILBOX_FRAMES && Instant::now() < until
    }

    /// Keeps the gap for `wait`, after which the inbox is read again.
    pub fn read_again_in(&mut self, wait: Duration) {
        self.until = Some(Instant::now() + wait);
    }

    /// Forgets the gap: nothing is missing, or the inbox is being read.
    pub fn clear(&mut self) {
        *self = ReorderBuffer::default();
    }

    /// Returns when the wait for a missing event is over; never, if nothing is missing. Cancel
    /// safe.
    pub async fn overdue(&self) {
        match self.until {
            Some(until) => tokio::time::sleep_until(until).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_missing_is_waited_for_a_moment() {
        let mut reorder_buffer = ReorderBuffer::default();
        let item = |seq: i64| Item {
            seq,
            encoded: Some(seq.to_string().into()),
        };
        [5, 3, 2, 6]
            .into_iter()
            .for_each(|seq| reorder_buffer.hold(item(seq)));
        assert_eq!(reorder_buffer.next(1).flatten().as_deref(), Some("2"));
        assert_eq!(reorder_buffer.next(2).flatten().as_deref(), Some("3"));
        assert!(reorder_buffer.next(3).is_none() && reorder_buffer.wait());
        reorder_buffer.overdue().await;
        assert!(!reorder_buffer.wait());
        // The missing event arrives after all, and the next gap has a full wait.
        reorder_buffer.hold(Item {
            seq: 4,
            encoded: None,
        });
        assert_eq!(reorder_buffer.next(3), Some(None));
        assert_eq!(reorder_buffer.next(4).flatten().as_deref(), Some("5"));
        reorder_buffer.hold(item(8));
        assert_eq!(reorder_buffer.next(5).flatten().as_deref(), Some("6"));
        assert!(reorder_buffer.next(6).is_none() && reorder_buffer.wait());
        (0..MAX_MAILBOX_FRAMES as i64).for_each(|n| reorder_buffer.hold(item(9 + n)));
        assert!(!reorder_buffer.wait());
        // An event that was read from the inbox meanwhile is not sent again.
        assert!(reorder_buffer.next(20_000).is_none() && reorder_buffer.held.is_empty());
    }
}
