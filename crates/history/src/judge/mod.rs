use std::collections::{HashMap, HashSet};

use crate::{Fault, Heard, History, Moment, Read, Said, Send, Span, Stay, Tag};

/// Finds every fault of a history; none if it is sound.
pub fn judge(history: &History) -> Vec<Fault> {
    let mut faults = Vec::new();
    let sends = by_tag(&history.sends, &mut faults);
    for conversation in 0..history.ends.len() {
        Conversation::new(conversation, history, &sends).judge(&mut faults);
    }
    let stays = by_place(&history.stays);
    for (principal, heard) in history.heard.iter().enumerate() {
        inbox(principal, heard, &mut faults);
        completeness(principal, heard, history, &stays, &mut faults);
    }
    outsiders(history, &sends, &stays, &mut faults);
    faults.sort();
    faults.dedup();
    faults
}

fn by_tag<'a>(sends: &'a [Send], faults: &mut Vec<Fault>) -> HashMap<Tag, &'a Send> {
    let mut all = HashMap::with_capacity(sends.len());
    for send in sends {
        if all.insert(send.tag, send).is_some() {
            faults.push(Fault::Doubled {
                conversation: send.conversation,
                tag: send.tag,
            });
        }
    }
    all
}

type Places<'a> = HashMap<(usize, usize), Vec<&'a Stay>>;

fn by_place(stays: &[Stay]) -> Places<'_> {
    let mut all: Places<'_> = HashMap::new();
    for stay in stays {
        all.entry((stay.principal, stay.conversation))
            .or_default()
            .push(stay);
    }
    all
}

/// A conversation as an append-only list.
struct Conversation<'a> {
    id: usize,
    end: &'a [(u64, Tag)],
    sends: &'a HashMap<Tag, &'a Send>,
    reads: Vec<&'a Read>,
    places: HashMap<Tag, u64>,
}

impl<'a> Conversation<'a> {
    fn new(id: usize, history: &'a History, sends: &'a HashMap<Tag, &'a Send>) -> Self {
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

    fn judge(&self, faults: &mut Vec<Fault>) {
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

/// Checks that numbers rise by 1, and that each conversation's numbers rise by any amount.
fn inbox(principal: usize, heard: &[Heard], faults: &mut Vec<Fault>) {
    let mut reached: HashMap<usize, u64> = HashMap::new();
    for pair in heard.windows(2) {
        if pair[1].number != pair[0].number + 1 {
            faults.push(Fault::Inbox {
                principal,
                number: pair[1].number,
                after: pair[0].number,
            });
        }
    }
    for Said {
        conversation, seq, ..
    } in heard.iter().filter_map(|event| event.message)
    {
        let after = reached.entry(conversation).or_default();
        if seq <= *after {
            faults.push(Fault::Reordered {
                principal,
                conversation,
                seq,
                after: *after,
            });
        }
        *after = seq;
    }
}

fn surely_inside(stay: &Stay, span: Span) -> bool {
    let came = stay.came.ended.is_some_and(|came| came < span.began);
    let stayed = stay
        .left
        .is_none_or(|left| span.ended.is_some_and(|ended| ended < left.began));
    came && stayed
}

fn perhaps_inside(stay: &Stay, span: Span) -> bool {
    let too_early = span.ended.is_some_and(|ended| ended < stay.came.began);
    let too_late = stay
        .left
        .and_then(|left| left.ended)
        .is_some_and(|left| left < span.began);
    !too_early && !too_late
}

/// Checks that a principal received every message that was sent during its certain stay.
fn completeness(
    principal: usize,
    heard: &[Heard],
    history: &History,
    stays: &Places<'_>,
    faults: &mut Vec<Fault>,
) {
    let tags: HashSet<Tag> = heard
        .iter()
        .filter_map(|event| Some(event.message?.tag))
        .collect();
    for send in history
        .sends
        .iter()
        .filter(|send| send.seq.is_some() && !tags.contains(&send.tag))
    {
        let stays = stays
            .get(&(principal, send.conversation))
            .map_or(&[][..], Vec::as_slice);
        if send.not_for != Some(principal)
            && stays.iter().any(|stay| surely_inside(stay, send.span))
        {
            faults.push(Fault::Unheard {
                principal,
                tag: send.tag,
            });
        }
    }
}

/// Checks that every message heard or read was sent while its reader may have been a member.
fn outsiders(
    history: &History,
    sends: &HashMap<Tag, &Send>,
    stays: &Places<'_>,
    faults: &mut Vec<Fault>,
) {
    let heard = history
        .heard
        .iter()
        .enumerate()
        .flat_map(|(principal, heard)| {
            heard.iter().filter_map(move |event| {
                event
                    .message
                    .map(|said| (principal, said.conversation, said.tag))
            })
        });
    let read = history.reads.iter().flat_map(|read| {
        read.seen
            .iter()
            .map(move |(_, tag)| (read.reader, read.conversation, *tag))
    });
    for (principal, conversation, tag) in heard.chain(read) {
        let send = sends
            .get(&tag)
            .filter(|send| !send.refused && send.conversation == conversation);
        let Some(send) = send else {
            faults.push(Fault::Phantom { conversation, tag });
            continue;
        };
        let stays = stays
            .get(&(principal, conversation))
            .map_or(&[][..], Vec::as_slice);
        if !stays.iter().any(|stay| perhaps_inside(stay, send.span)) {
            faults.push(Fault::Outsider { principal, tag });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(began: Moment, ended: Moment) -> Span {
        Span {
            began,
            ended: Some(ended),
        }
    }

    fn said(seq: u64, tag: Tag) -> Option<Said> {
        Some(Said {
            conversation: 0,
            seq,
            tag,
        })
    }

    fn send(tag: Tag, at: (Moment, Moment), seq: u64) -> Send {
        Send {
            conversation: 0,
            tag,
            span: span(at.0, at.1),
            seq: Some(seq),
            refused: false,
            not_for: None,
        }
    }

    /// A sound history. A member stays throughout, and another leaves between the second and third
    /// message. The third send overlaps the fourth.
    fn sound() -> History {
        let heard = |from: u64, tags: &[(u64, Tag)]| {
            let messages = tags.iter().map(|(seq, tag)| said(*seq, *tag));
            (from..)
                .zip(messages)
                .map(|(number, message)| Heard { number, message })
                .collect()
        };
        let stay = |principal, left| Stay {
            conversation: 0,
            principal,
            came: span(0, 1),
            left,
        };
        let unknown = Send {
            span: Span {
                began: 90,
                ended: None,
            },
            seq: None,
            ..send(15, (0, 0), 0)
        };
        History {
            sends: vec![
                send(11, (10, 20), 1),
                send(12, (30, 40), 2),
                send(13, (60, 80), 4),
                send(14, (61, 70), 3),
                unknown,
            ],
            reads: vec![
                Read {
                    conversation: 0,
                    reader: 0,
                    span: span(35, 39),
                    seen: vec![(1, 11)],
                },
                Read {
                    conversation: 0,
                    reader: 1,
                    span: span(42, 45),
                    seen: vec![(2, 12), (1, 11)],
                },
            ],
            heard: vec![
                heard(5, &[(1, 11), (2, 12), (3, 14), (4, 13)]),
                heard(9, &[(1, 11), (2, 12)]),
            ],
            stays: vec![stay(0, None), stay(1, Some(span(50, 55)))],
            ends: vec![vec![(1, 11), (2, 12), (3, 14), (4, 13)]],
        }
    }

    fn kinds(change: impl FnOnce(&mut History)) -> Vec<&'static str> {
        let mut history = sound();
        change(&mut history);
        let mut kinds: Vec<_> = judge(&history).iter().map(Fault::kind).collect();
        kinds.dedup();
        kinds
    }

    #[test]
    fn a_sound_history_passes_also_if_what_was_unknown_appears() {
        assert_eq!(kinds(|_| {}), [""; 0]);
        let appeared = |history: &mut History| {
            history.ends[0].push((5, 15));
            history.heard[0].push(Heard {
                number: 9,
                message: said(5, 15),
            });
        };
        assert_eq!(kinds(appeared), [""; 0]);
        // Members may change in the middle of a send, so either outcome is sound.
        let raced = |history: &mut History| {
            history.sends[1].span = span(30, 52);
            history.heard[1].pop();
            history.reads.clear();
        };
        assert_eq!(kinds(raced), [""; 0]);
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(kinds(|h| h.ends[0].truncate(3)), ["lost"]);
        assert_eq!(kinds(|h| h.ends[0][3].0 = 5), ["gap", "doubled"]);
        assert_eq!(kinds(|h| h.ends[0][3].0 = 3), ["doubled", "ambiguous"]);
        assert_eq!(kinds(|h| h.ends[0].push((5, 99))), ["phantom"]);
        assert_eq!(kinds(|h| h.sends[0].refused = true), ["phantom"]);
        assert_eq!(kinds(|h| h.heard[0][2].number = 8), ["inbox"]);
        assert_eq!(kinds(|h| h.heard[0][1].number = 5), ["inbox"]);
        assert_eq!(kinds(|h| h.heard[0].truncate(3)), ["unheard"]);
        assert_eq!(
            kinds(|h| h.heard[1].push(Heard {
                number: 11,
                message: said(4, 13)
            })),
            ["outsider"]
        );
        assert_eq!(
            kinds(|h| h.reads[1].seen.insert(0, (4, 13))),
            ["order", "outsider"]
        );
        let swapped = |h: &mut History| {
            let first = h.heard[0][0].message;
            h.heard[0][0].message = h.heard[0][1].message;
            h.heard[0][1].message = first;
        };
        assert_eq!(kinds(swapped), ["reordered"]);
    }

    #[test]
    fn an_order_against_the_clock_is_found_in_every_pair_of_operations() {
        // A send that began after another's answer has a smaller number.
        assert_eq!(kinds(|h| h.sends[3].span = span(81, 83)), ["order"]);
        // A read lacks a message that was acknowledged before it began.
        assert_eq!(kinds(|h| h.reads[0].span = span(41, 44)), ["order"]);
        // A read sees less than an earlier answered read.
        let less = |h: &mut History| {
            h.reads[0].span = span(46, 47);
            h.sends[1].span = span(30, 48);
        };
        assert_eq!(kinds(less), ["order"]);
        // A send is answered with a number that a read saw in use before the send began.
        let taken = |h: &mut History| {
            h.reads[1] = Read {
                reader: 0,
                seen: vec![(3, 14), (2, 12), (1, 11)],
                ..h.reads[1].clone()
            };
        };
        assert_eq!(kinds(taken), ["order"]);
    }
}
