//! A sound history passes, and each fault is named.

use super::*;
use crate::{Moment, Read};

fn span(began: Moment, ended: Moment) -> Span {
    Span {
        began,
        ended: Some(ended),
    }
}

fn said(seq: u64, tag: Tag) -> Said {
    Said {
        conversation: 0,
        seq,
        tag,
    }
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
        let messages = tags.iter().map(|(seq, tag)| Some(said(*seq, *tag)));
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
            message: Some(said(5, 15)),
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
            message: Some(said(4, 13))
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
