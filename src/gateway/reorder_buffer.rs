//! Events that come before their turn. Hints of several nodes overtake each other, so whoever lacks one is most likely
//! to be told it within milliseconds: reading the inbox at once would be a query per listener of a lively conversation.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::{delivery::hub::Item, events::EncodedEvent, limits::quotas::MAX_MAILBOX_FRAMES};

/// How long an event that is missing is waited for before the inbox is read. Much longer than hints take, also on a busy
/// machine: where reading makes them later still, nobody would ever stop reading.
const GAP_TIMEOUT: Duration = Duration::from_millis(250);

/// What has come and cannot be told yet.
#[derive(Default)]
pub struct ReorderBuffer {
    held: BTreeMap<i64, Option<EncodedEvent>>,
    /// Until when what is missing may come by itself.
    until: Option<Instant>,
}

impl ReorderBuffer {
    /// Something has come.
    pub fn hold(&mut self, Item { seq, encoded }: Item) {
        self.held.insert(seq, encoded);
    }

    /// The event after `sent`, if it has come: its body, or only word of it.
    pub fn next(&mut self, sent: i64) -> Option<Option<EncodedEvent>> {
        while let Some(first) = self
            .held
            .first_entry()
            .filter(|first| *first.key() <= sent + 1)
        {
            let (seq, encoded) = first.remove_entry();
            if seq == sent + 1 {
                self.until = None;
                return Some(encoded);
            }
        }
        None
    }

    /// Something is missing. False if it has been waited for long enough, or too much has piled up behind it.
    pub fn wait(&mut self) -> bool {
        let until = *self
            .until
            .get_or_insert_with(|| Instant::now() + GAP_TIMEOUT);
        self.held.len() < MAX_MAILBOX_FRAMES && Instant::now() < until
    }

    /// Nothing is missing any more, or all of it is read from the inbox.
    pub fn clear(&mut self) {
        *self = ReorderBuffer::default();
    }

    /// Returns when what is missing has been waited for long enough; never, if nothing is. Cancel safe.
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
        // It comes after all; the next gap is waited for anew.
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
        // What was read from the inbox meanwhile is not told again.
        assert!(reorder_buffer.next(20_000).is_none() && reorder_buffer.held.is_empty());
    }
}
