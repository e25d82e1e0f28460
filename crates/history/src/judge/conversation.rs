//! A conversation, judged as an append-only list.

use std::collections::{HashMap, HashSet};

use crate::{Fault, History, Moment, Read, Send, Span, Tag};

/// A conversation as an append-only list.
pub(super) struct Conversation<'a> {
    id: usize,
    end: &'a [(u64, Tag)],
    sends: &'a HashMap<Tag, &'a Send>,
    reads: Vec<&'a Read>,
    places: HashMap<Tag, u64>,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(id: usize, history: &'a History, sends: &'a HashMap<Tag, &'a Send>) -> Self {
        let end = history.ends[id].as_slice();
        let reads = history
            .reads
            .iter()
            .filter(|read| read.conversation == id)
            .collect();
        let places = end.iter().map(|(seq, tag)| (*tag, *seq)).collect();
        Conversation {
            id,
            end,
            sends,
            reads,
            places,
        }
    }

    pub(super) fn judge(&self, faults: &mut Vec<Fault>) {
        self.numbers(faults);
        self.contents(faults);
        self.order(faults);
    }

    /// Checks the numbers: 1, 2, 3, each with a message, and each message once.
    fn numbers(&self, faults: &mut Vec<Fault>) {
        let mut last = 0;
        let mut tags = HashSet::new();
        for (seq, tag) in self.end {
            if *seq == last {
                faults.push(Fault::Ambiguous {
                    conversation: self.id,
                    seq: *seq,
                });
            } else if *seq != last + 1 {
                faults.push(Fault::Gap {
                    conversation: self.id,
                    after: last,
                });
            }
            if !tags.insert(tag) {
                faults.push(Fault::Doubled {
                    conversation: self.id,
                    tag: *tag,
                });
            }
            last = *seq;
        }
    }

    /// Checks three rules. An acknowledged message is there under its number. A message that is
    /// there was sent. A message that was read is there.
    fn contents(&self, faults: &mut Vec<Fault>) {
        let conversation = self.id;
        for send in self
            .sends
            .values()
            .filter(|send| send.conversation == conversation)
        {
            let tag = send.tag;
            match (send.seq, self.places.get(&tag)) {
                (Some(_), None) => faults.push(Fault::Lost { conversation, tag }),
                (Some(said), Some(seq)) if said != *seq => {
                    faults.push(Fault::Doubled { conversation, tag });
                }
                _ => {}
            }
        }
        for (_, tag) in self.end {
            if self
                .sends
                .get(tag)
                .is_none_or(|send| send.refused || send.conversation != conversation)
            {
                faults.push(Fault::Phantom {
                    conversation,
                    tag: *tag,
                });
            }
        }
        for (seq, tag) in self.reads.iter().flat_map(|read| &read.seen) {
            match self.places.get(tag) {
                Some(place) if place == seq => {}
                Some(_) => faults.push(Fault::Doubled {
                    conversation,
                    tag: *tag,
                }),
                None => faults.push(Fault::Lost {
                    conversation,
                    tag: *tag,
                }),
            }
        }
    }

    /// Goes through the moments in order. `reached` is the farthest place that an answered
    /// operation has shown so far. A send that begins now must come behind it, and a read must see
    /// it.
    fn order(&self, faults: &mut Vec<Fault>) {
        let sends = self
            .sends
            .values()
            .filter(|send| send.conversation == self.id)
            .filter_map(|send| {
                // This is the place that readers see. An answer with another place is a fault of
                // its own.
                Some((send.span, *self.places.get(&send.tag)?, true))
            });
        // An empty page has no place, because its reader may have joined just now.
        let reads = self
            .reads
            .iter()
            .filter_map(|read| Some((read.span, read.seen.first()?.0, false)));
        let operations: Vec<(Span, u64, bool)> = sends.chain(reads).collect();
        let mut moments: Vec<(Moment, bool, usize)> = Vec::with_capacity(operations.len() * 2);
        for (n, (span, _, _)) in operations.iter().enumerate() {
            moments.push((span.began, false, n));
            moments.extend(span.ended.map(|ended| (ended, true, n)));
        }
        // At equal moments begins come first: an operation that is not clearly earlier counts as
        // concurrent.
        moments.sort_unstable();
        let mut reached = 0;
        for (_, is_end, n) in moments {
            let (_, place, is_send) = operations[n];
            if is_end {
                reached = reached.max(place);
            } else if place < reached || (is_send && place == reached) {
                faults.push(Fault::Order {
                    conversation: self.id,
                    seq: place,
                    before: reached,
                });
            }
        }
    }
}
