//! Events that arrive before their turn. Hints of several nodes overtake each other, so a missing
//! event most likely arrives within milliseconds. Reading the inbox at once would be a query per
//! subscription of a lively conversation.
//!
//! Why: ADR 7.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    delivery::subscription::Item,
    events::EncodedEvent,
    inbox::Entry,
    limits::{buffers::BytePermit, quotas::MAX_MAILBOX_FRAMES},
    planted::PlantedBug,
};

/// Wait for a missing event before the inbox is read. It is much longer than hints take on a busy
/// machine. A shorter wait would read more, and reading delays hints further.
const GAP_TIMEOUT: Duration = Duration::from_millis(250);

/// The client that events are handed to, and its inbox. A socket is one, and a simulation has another.
pub trait Reader: Send {
    /// Why it ends.
    type End: Send;

    /// The last number that was handed on.
    fn sent(&self) -> i64;
    /// Whether nothing is handed on until its credential is renewed.
    fn has_expired(&self) -> bool;
    /// Hands on an event; false if nothing may be handed on now.
    fn write(
        &mut self,
        seq: i64,
        encoded: EncodedEvent,
    ) -> impl Future<Output = Result<bool, Self::End>> + Send;
    /// Writes what was handed on.
    fn flush(&mut self) -> impl Future<Output = Result<(), Self::End>> + Send;
    /// The next events of the inbox.
    fn page(&mut self, after: i64) -> impl Future<Output = Result<Page, Self::End>> + Send;
}

/// A page of an inbox.
pub enum Page {
    /// Its events, and the bytes that they take until they are written.
    Entries(Vec<Entry>, Option<BytePermit>),
    /// Postgres is away. The page is read again after this time.
    Away(Duration),
}

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

    /// Hands on the events in their order, and reads what is missing from the inbox. An event that
    /// may not be handed on stays in the inbox.
    pub async fn deliver<R: Reader>(
        &mut self,
        items: VecDeque<Item>,
        head: i64,
        is_urgent: bool,
        reader: &mut R,
    ) -> Result<(), R::End> {
        items.into_iter().for_each(|item| self.hold(item));
        while let Some(encoded) = self.next(reader.sent()) {
            let seq = reader.sent() + 1;
            match encoded {
                None => self.read_to(seq, reader).await?,
                Some(encoded) => {
                    if !reader.write(seq, encoded).await? {
                        break;
                    }
                }
            }
        }
        let is_behind = head > reader.sent() && !reader.has_expired();
        if !is_behind || is_urgent || !self.wait() {
            self.clear();
            if is_behind {
                self.read_to(head, reader).await?;
            }
        }
        Ok(())
    }

    /// Reads the inbox until `head` has been handed on, or Postgres is away.
    pub async fn read_to<R: Reader>(&mut self, head: i64, reader: &mut R) -> Result<(), R::End> {
        while reader.sent() < head {
            let (entries, _permit) = match reader.page(reader.sent()).await? {
                Page::Entries(entries, permit) => (entries, permit),
                Page::Away(wait) => {
                    self.read_again_in(wait);
                    return Ok(());
                }
            };
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                if !reader.write(entry.seq, entry.encoded).await? {
                    return Ok(());
                }
            }
            reader.flush().await?;
        }
        Ok(())
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
