//! The check that all acked messages have arrived, once and in order.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use ulid::Ulid;

/// A send that was answered with 201.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Acked {
    /// The message's number in its conversation, from the answer.
    pub seq: i64,
    /// The message's id, from the answer.
    pub message: Ulid,
}

/// A received event.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The event's number in the inbox.
    pub inbox_seq: i64,
    /// The message of a `message.created`, or none.
    pub message: Option<Acked>,
}

/// An agent's reading of its inbox, over all of its sockets in turn.
#[derive(Debug, Default)]
pub struct Reader {
    /// The cursor from which the next socket continues.
    pub cursor: Option<String>,
    arrivals: Vec<Arrival>,
    /// The end of the last check: numbers in the inbox and in the conversation.
    inbox_seq: Option<i64>,
    seq: i64,
}

/// The numbers of faults. All of them must be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// Sends that were not answered with 201.
    pub failed: u64,
    /// Acked messages that were never received.
    pub lost: u64,
    /// Messages that were received more than once.
    pub duplicated: u64,
    /// Messages that were received after one with a higher number.
    pub reordered: u64,
    /// Steps of the inbox's numbers other than one.
    pub inbox_gaps: u64,
    /// Messages with another number than in the answer, or without an ack although no send failed.
    pub strange: u64,
}

impl Faults {
    /// Whether there are no faults.
    pub fn none(&self) -> bool {
        *self == Faults::default()
    }

    /// The number of faults.
    pub fn total(&self) -> u64 {
        self.failed + self.lost + self.duplicated + self.reordered + self.inbox_gaps + self.strange
    }

    /// Adds another's faults.
    pub fn add(&mut self, other: &Faults) {
        self.failed += other.failed;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.inbox_gaps += other.inbox_gaps;
        self.strange += other.strange;
    }
}

impl Reader {
    /// A reading that continues from a cursor, in a conversation whose last number is `seq`.
    pub fn after(cursor: Option<String>, seq: i64) -> Self {
        Reader {
            cursor,
            seq,
            ..Reader::default()
        }
    }

    /// Records an arrival.
    pub fn note(&mut self, arrival: Arrival) {
        self.arrivals.push(arrival);
    }

    /// Compares the arrivals with the acked sends since the last check. The outcome of `failed`
    /// sends is unknown.
    pub fn judge(&mut self, acked: &[Acked], failed: u64) -> Faults {
        let mut faults = Faults {
            failed,
            ..Faults::default()
        };
        let mut arrived: HashMap<Ulid, i64> = HashMap::with_capacity(acked.len());
        let mut highest = self.seq;
        for arrival in self.arrivals.drain(..) {
            let expected = self
                .inbox_seq
                .map_or(arrival.inbox_seq, |before| before + 1);
            faults.inbox_gaps += u64::from(arrival.inbox_seq != expected);
            self.inbox_seq = Some(arrival.inbox_seq.max(expected));
            let Some(Acked { seq, message }) = arrival.message else {
                continue;
            };
            if arrived.insert(message, seq).is_some() {
                faults.duplicated += 1;
            } else if seq < highest {
                faults.reordered += 1;
            }
            highest = highest.max(seq);
        }
        for Acked { seq, message } in acked {
            match arrived.get(message) {
                None => faults.lost += 1,
                Some(told) if told != seq => faults.strange += 1,
                Some(_) => {}
            }
        }
        // All arrivals are numbered without gaps, whether or not their sender got an answer.
        let numbers: HashSet<i64> = arrived.values().copied().collect();
        let span = u64::try_from(highest - self.seq).unwrap_or_default();
        let missing = span.saturating_sub(numbers.len() as u64);
        faults.lost = faults.lost.max(missing);
        let unasked = (arrived.len() as u64).saturating_sub(acked.len() as u64 + failed);
        faults.strange += unasked;
        self.seq = highest;
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(seq: i64) -> Acked {
        Acked {
            seq,
            message: Ulid(seq.unsigned_abs().into()),
        }
    }

    fn judged(arrivals: &[(i64, i64)], acked: &[i64], failed: u64) -> Faults {
        let mut reader = Reader::default();
        for (inbox_seq, seq) in arrivals {
            reader.note(Arrival {
                inbox_seq: *inbox_seq,
                message: (*seq > 0).then(|| message(*seq)),
            });
        }
        reader.judge(
            &acked.iter().map(|seq| message(*seq)).collect::<Vec<_>>(),
            failed,
        )
    }

    #[test]
    fn what_arrives_once_and_in_order_is_right() {
        assert!(judged(&[(7, 0), (8, 1), (9, 2), (10, 3)], &[2, 1, 3], 0).none());
        // A send whose answer was lost may have been stored.
        assert_eq!(
            judged(&[(1, 1), (2, 2)], &[1], 1),
            Faults {
                failed: 1,
                ..Faults::default()
            }
        );
    }

    #[test]
    fn every_fault_is_counted() {
        let none = Faults::default();
        assert_eq!(judged(&[(1, 1)], &[1, 2], 0), Faults { lost: 1, ..none });
        assert_eq!(
            judged(&[(1, 1), (2, 3)], &[1, 3], 0),
            Faults { lost: 1, ..none }
        );
        assert_eq!(
            judged(&[(1, 1), (2, 1)], &[1], 0),
            Faults {
                duplicated: 1,
                ..none
            }
        );
        assert_eq!(
            judged(&[(1, 2), (2, 1)], &[1, 2], 0),
            Faults {
                reordered: 1,
                ..none
            }
        );
        assert_eq!(
            judged(&[(1, 1), (3, 2)], &[1, 2], 0),
            Faults {
                inbox_gaps: 1,
                ..none
            }
        );
        assert_eq!(
            judged(&[(1, 1), (2, 2)], &[1], 0),
            Faults { strange: 1, ..none }
        );
    }

    #[test]
    fn judgements_follow_each_other() {
        let mut reader = Reader::default();
        reader.note(Arrival {
            inbox_seq: 3,
            message: Some(message(1)),
        });
        assert!(reader.judge(&[message(1)], 0).none());
        reader.note(Arrival {
            inbox_seq: 4,
            message: Some(message(3)),
        });
        assert_eq!(
            reader.judge(&[message(3)], 0),
            Faults {
                lost: 1,
                ..Faults::default()
            }
        );
    }
}
