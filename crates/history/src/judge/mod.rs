//! Finds the faults of a history.

mod conversation;
#[cfg(test)]
mod tests;
mod trials;

use std::collections::{HashMap, HashSet};

pub use self::trials::judge_trials;

use self::conversation::Conversation;
use crate::{Fault, Heard, History, Said, Send, Span, Stay, Tag};

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
