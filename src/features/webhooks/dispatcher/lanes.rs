//! The events that a turn has read and not finished, in lanes. The events of a lane are delivered
//! one after another, those of different lanes side by side.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use chrono::{DateTime, Utc};

use crate::{
    events::EncodedEvent,
    ids::{ConversationId, DeliveryId},
    limits::buffers::BytePermit,
    telemetry::trace::TraceContext,
};

/// Events that are delivered in order: those of a conversation, those without one, or a replay by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Conversation(ConversationId),
    Others,
    Replay(DeliveryId),
}

/// A delivery that the log has already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedDelivery {
    pub id: DeliveryId,
    /// Attempts that a dead worker has begun and not finished, to be added to the log as JSON.
    pub interrupted: Vec<String>,
    /// Whether an attempt has succeeded, which a replay may repeat.
    pub succeeded: bool,
    /// Whether it was asked for by hand.
    pub is_replay: bool,
}

/// The bytes that an event holds, of its turn's and of the node's.
pub struct HeldBytes {
    turn: Arc<AtomicUsize>,
    permit: BytePermit,
}

impl HeldBytes {
    /// Counts the permit's bytes for a turn.
    pub fn new(turn: &Arc<AtomicUsize>, permit: BytePermit) -> Self {
        turn.fetch_add(permit.bytes(), Ordering::Relaxed);
        HeldBytes {
            turn: turn.clone(),
            permit,
        }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.turn.fetch_sub(self.permit.bytes(), Ordering::Relaxed);
    }
}

/// An event to deliver.
pub struct Item {
    /// The event's number in the inbox.
    pub seq: i64,
    pub encoded: EncodedEvent,
    /// None before the first attempt.
    pub logged: Option<LoggedDelivery>,
    /// The earliest time of the next attempt.
    pub not_before: Option<DateTime<Utc>>,
    /// The trace that the event is part of.
    pub trace: Option<TraceContext>,
    /// None for a replay, which is a single event.
    #[expect(dead_code, reason = "held, not read")]
    pub bytes: Option<HeldBytes>,
}

impl Item {
    /// The event, to be attempted again at `at`.
    pub fn not_before(self, at: DateTime<Utc>) -> Self {
        Item {
            not_before: Some(at),
            ..self
        }
    }
}

/// The lanes of a turn.
#[derive(Default)]
pub struct Lanes {
    lanes: BTreeMap<Lane, Queue>,
    waiting: usize,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// An attempt of the lane is under way.
    is_busy: bool,
}

impl Lanes {
    /// Adds an event behind those of its lane.
    pub fn push(&mut self, lane: Lane, item: Item) {
        self.lanes.entry(lane).or_default().items.push_back(item);
        self.waiting += 1;
    }

    /// The number of events that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes the event with the lowest number among those that may be delivered now. Its lane is
    /// busy until [`Lanes::conclude`].
    pub fn next(&mut self, now: DateTime<Utc>) -> Option<(Lane, Item)> {
        let is_ready = |item: &Item| item.not_before.is_none_or(|at| at <= now);
        let heads = self.lanes.iter().filter(|(_, queue)| !queue.is_busy);
        let ready = heads.filter_map(|(lane, queue)| {
            let head = queue.items.front()?;
            is_ready(head).then_some((head.seq, *lane))
        });
        let (_, lane) = ready.min()?;
        let queue = self.lanes.get_mut(&lane)?;
        let item = queue.items.pop_front()?;
        queue.is_busy = true;
        self.waiting -= 1;
        Some((lane, item))
    }

    /// Takes events for one call: at most so many, and the bytes of all but the first are bounded. They
    /// are in the order of their numbers. A delivery of the log is alone, so that one which fails again
    /// and again fails no other. Their lanes are busy until [`Lanes::conclude`].
    pub fn next_batch(
        &mut self,
        now: DateTime<Utc>,
        max_events: usize,
        max_bytes: usize,
    ) -> Vec<(Lane, Item)> {
        let Some(first) = self.next(now) else {
            return Vec::new();
        };
        let mut bytes = first.1.encoded.len();
        let mut batch = vec![first];
        while batch.len() < max_events && batch[0].1.logged.is_none() {
            let is_ours = |lane: &Lane| batch.iter().any(|(taken, _)| taken == lane);
            let open = self.lanes.iter();
            let open = open.filter(|(lane, queue)| !queue.is_busy || is_ours(lane));
            let ready = open.filter_map(|(lane, queue)| {
                let head = queue.items.front()?;
                let is_ready = head.not_before.is_none_or(|at| at <= now);
                let may_join = is_ready && head.logged.is_none();
                may_join.then_some((head.seq, *lane, head.encoded.len()))
            });
            let Some((_, lane, len)) = ready.min() else {
                break;
            };
            bytes += len;
            if bytes > max_bytes {
                break;
            }
            if let Some(queue) = self.lanes.get_mut(&lane)
                && let Some(item) = queue.items.pop_front()
            {
                queue.is_busy = true;
                self.waiting -= 1;
                batch.push((lane, item));
            }
        }
        batch
    }

    /// The time at which an idle lane has something to deliver, perhaps long ago.
    pub fn next_at(&self) -> Option<DateTime<Utc>> {
        let idle = self.lanes.values().filter(|queue| !queue.is_busy);
        let heads = idle.filter_map(|queue| queue.items.front());
        heads
            .map(|item| item.not_before.unwrap_or(DateTime::<Utc>::MIN_UTC))
            .min()
    }

    /// Whether a lane has something to deliver.
    pub fn has(&self, lane: Lane) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// Makes a delivery of the log due at once.
    pub fn hasten(&mut self, id: DeliveryId) {
        let items = self.lanes.values_mut().flat_map(|queue| &mut queue.items);
        for item in items {
            if item.logged.as_ref().is_some_and(|logged| logged.id == id) {
                item.not_before = None;
            }
        }
    }

    /// Ends an attempt. An unfinished event is delivered again, before the others of its lane. Those of
    /// a batch are concluded last first.
    pub fn conclude(&mut self, lane: Lane, unfinished: Option<Item>) {
        let queue = self.lanes.entry(lane).or_default();
        queue.is_busy = false;
        if let Some(item) = unfinished {
            queue.items.push_front(item);
            self.waiting += 1;
        }
        if queue.items.is_empty() {
            self.lanes.remove(&lane);
        }
    }

    /// Drops events that the agent has acked in another way, except replays.
    pub fn drop_acked(&mut self, acked: i64) {
        for (lane, queue) in &mut self.lanes {
            if !matches!(lane, Lane::Replay(_)) {
                let before = queue.items.len();
                queue.items.retain(|item| item.seq > acked);
                self.waiting -= before - queue.items.len();
            }
        }
        self.lanes
            .retain(|_, queue| queue.is_busy || !queue.items.is_empty());
    }

    /// Whether an event of the log waits, to which another worker would have to return.
    pub fn has_logged(&self) -> bool {
        let mut items = self.lanes.values().flat_map(|queue| &queue.items);
        items.any(|item| item.logged.is_some())
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::limits::quotas::MB;

    fn lane(n: u128) -> Lane {
        Lane::Conversation(ConversationId::from_bytes(n.to_be_bytes()))
    }

    fn item(seq: i64) -> Item {
        Item {
            seq,
            encoded: "".into(),
            logged: None,
            not_before: None,
            trace: None,
            bytes: None,
        }
    }

    fn next(lanes: &mut Lanes) -> Option<i64> {
        lanes.next(DateTime::UNIX_EPOCH).map(|(_, item)| item.seq)
    }

    #[test]
    fn a_lane_is_serial_and_the_lowest_number_goes_first() {
        let mut lanes = Lanes::default();
        for (n, seq) in [(1, 1), (1, 2), (2, 3), (1, 4)] {
            lanes.push(lane(n), item(seq));
        }
        assert_eq!(next(&mut lanes), Some(1));
        assert_eq!(next(&mut lanes), Some(3));
        assert_eq!(next(&mut lanes), None);
        lanes.conclude(lane(1), None);
        assert_eq!(next(&mut lanes), Some(2));
        assert_eq!(lanes.waiting(), 1);
    }

    #[test]
    fn a_retry_holds_up_its_lane_alone() {
        let mut lanes = Lanes::default();
        for (n, seq) in [(1, 1), (1, 2), (2, 3)] {
            lanes.push(lane(n), item(seq));
        }
        let (failed, mut first) = lanes.next(DateTime::UNIX_EPOCH).expect("the first");
        let later = DateTime::UNIX_EPOCH + TimeDelta::seconds(5);
        first.not_before = Some(later);
        lanes.conclude(failed, Some(first));
        assert_eq!(lanes.next_at(), Some(DateTime::<Utc>::MIN_UTC));
        assert_eq!(next(&mut lanes), Some(3));
        assert_eq!(next(&mut lanes), None);
        assert_eq!(lanes.next_at(), Some(later));
        assert_eq!(lanes.next(later).map(|(_, item)| item.seq), Some(1));
    }

    #[test]
    fn a_batch_has_the_lowest_numbers_of_lanes_that_are_free() {
        let mut lanes = Lanes::default();
        for (n, seq) in [(1, 1), (1, 2), (2, 3), (1, 4), (3, 5)] {
            lanes.push(lane(n), item(seq));
        }
        let failed = LoggedDelivery {
            id: DeliveryId::NIL,
            interrupted: Vec::new(),
            succeeded: false,
            is_replay: false,
        };
        let failed = Item {
            logged: Some(failed),
            ..item(6)
        };
        lanes.push(lane(4), failed);
        lanes.push(lane(4), item(7));
        lanes.push(lane(5), item(8));
        let (busy, held) = lanes.next(DateTime::UNIX_EPOCH).expect("the first");
        let numbers = |batch: &[(Lane, Item)]| -> Vec<i64> {
            batch.iter().map(|(_, item)| item.seq).collect()
        };
        // The lane of the first is another call's.
        let others = lanes.next_batch(DateTime::UNIX_EPOCH, 50, MB);
        assert_eq!(numbers(&others), [3, 5, 8]);
        lanes.conclude(busy, Some(held));
        for (lane, item) in others.into_iter().rev() {
            lanes.conclude(lane, Some(item));
        }
        let batch = lanes.next_batch(DateTime::UNIX_EPOCH, 4, MB);
        assert_eq!(numbers(&batch), [1, 2, 3, 4]);
        for (n, (lane, item)) in batch.into_iter().enumerate().rev() {
            // The second has failed, and so has what follows it in its lane.
            lanes.conclude(lane, [1, 3].contains(&n).then_some(item));
        }
        let mut next = || numbers(&lanes.next_batch(DateTime::UNIX_EPOCH, 50, MB));
        assert_eq!(next(), [2, 4, 5, 8]);
        assert_eq!(next(), [6], "what has failed before is alone");
        assert!(next().is_empty());
    }

    #[test]
    fn a_batch_ends_before_it_grows_too_large() {
        let mut lanes = Lanes::default();
        for seq in 1..=4 {
            let encoded = "x".repeat(40).as_str().into();
            lanes.push(
                lane(1),
                Item {
                    encoded,
                    ..item(seq)
                },
            );
        }
        let mut len = |max_bytes| lanes.next_batch(DateTime::UNIX_EPOCH, 50, max_bytes).len();
        assert_eq!((len(99), len(10)), (2, 0));
    }

    #[test]
    fn an_ack_in_another_way_drops_what_waits() {
        let mut lanes = Lanes::default();
        for (n, seq) in [(1, 1), (1, 2), (2, 3)] {
            lanes.push(lane(n), item(seq));
        }
        lanes.drop_acked(2);
        assert_eq!((lanes.waiting(), next(&mut lanes)), (1, Some(3)));
    }
}
