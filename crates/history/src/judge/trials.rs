//! Finds the faults of trials.

use std::collections::{HashMap, HashSet};

use crate::{Ending, Fault, Hold, Moment, Trials};

/// Finds every fault of trials; none if they are sound.
pub fn judge_trials(trials: &Trials) -> Vec<Fault> {
    let mut faults = Vec::new();
    let endings: HashMap<usize, &Ending> = trials.endings.iter().map(|one| (one.id, one)).collect();
    revived(trials, &endings, &mut faults);
    crowded(&trials.holds, &mut faults);
    flooded(trials, &mut faults);
    let mut first = HashMap::new();
    for answer in &trials.answers {
        if *first.entry(answer.id).or_insert(answer.choice) != answer.choice {
            faults.push(Fault::Redecided { id: answer.id });
        }
    }
    let is_late = |from: Moment, until: Moment, bound| until.saturating_sub(from) > bound;
    for wait in &trials.waits {
        if (wait.span.ended).is_none_or(|ended| is_late(wait.span.began, ended, wait.bound)) {
            faults.push(Fault::Late { id: wait.id });
        }
    }
    for watch in &trials.watches {
        let Some(ending) = endings.get(&watch.id) else {
            continue;
        };
        if (ending.span.ended).is_some_and(|ended| is_late(ended, watch.until, watch.bound)) {
            let (thing, id) = (ending.thing, ending.id);
            faults.push(Fault::Unclosed { thing, id });
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

/// An attempt that began after the end's answer must not be taken.
fn revived(trials: &Trials, endings: &HashMap<usize, &Ending>, faults: &mut Vec<Fault>) {
    for attempt in trials.attempts.iter().filter(|attempt| attempt.taken) {
        let ending = endings.get(&attempt.id);
        if let Some(ending) = ending
            && (ending.span.ended).is_some_and(|ended| ended < attempt.span.began)
        {
            let (thing, id) = (ending.thing, ending.id);
            faults.push(Fault::Revived { thing, id });
        }
    }
}

/// Looks at each socket as the last of a crowd. The crowd lasts until as many have gone
/// as are too many.
fn crowded(holds: &[Hold], faults: &mut Vec<Fault>) {
    for last in holds {
        let beside = holds
            .iter()
            .filter(|one| one.id == last.id && one.from <= last.from && one.until > last.from);
        let mut ends: Vec<Moment> = beside.map(|one| one.until).collect();
        ends.sort_unstable();
        if let Some(too_many) = ends.len().checked_sub(last.bound + 1)
            && ends[too_many].saturating_sub(last.from) > last.grace
        {
            let (id, held) = (last.id, ends.len());
            faults.push(Fault::Crowded { id, held });
        }
    }
}

/// Looks at each call as the first of a window.
fn flooded(trials: &Trials, faults: &mut Vec<Fault>) {
    let ids: HashSet<usize> = trials.admissions.iter().map(|one| one.id).collect();
    for id in ids {
        let calls: Vec<_> = trials
            .admissions
            .iter()
            .filter(|one| one.id == id)
            .collect();
        let within = |first: Moment, window: Moment| {
            let inside = calls
                .iter()
                .filter(|one| one.began >= first && one.ended.saturating_sub(first) < window);
            inside.count()
        };
        let most = calls.iter().map(|one| within(one.began, one.window)).max();
        let admitted = most.unwrap_or_default();
        if calls.iter().any(|one| admitted > one.bound) {
            faults.push(Fault::Flooded { id, admitted });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, Answer, Attempt, Span, Thing, Wait, Watch};

    fn span(began: Moment, ended: Moment) -> Span {
        Span {
            began,
            ended: Some(ended),
        }
    }

    /// Trials with nothing wrong, each at its edge.
    fn sound() -> Trials {
        let hold = |from, until| Hold {
            id: 1,
            from,
            until,
            bound: 2,
            grace: 10,
        };
        let admission = |began| Admission {
            id: 2,
            began,
            ended: began + 1,
            bound: 2,
            window: 60,
        };
        Trials {
            endings: vec![Ending {
                thing: Thing::Session,
                id: 0,
                span: span(10, 20),
            }],
            // An attempt that began before the answer may be taken.
            attempts: vec![Attempt {
                id: 0,
                span: span(20, 30),
                taken: true,
            }],
            watches: vec![Watch {
                id: 0,
                until: 25,
                bound: 5,
            }],
            holds: vec![hold(0, 100), hold(0, 40), hold(30, 90)],
            admissions: vec![admission(0), admission(20), admission(60)],
            answers: [7, 7].map(|choice| Answer { id: 3, choice }).into(),
            waits: vec![Wait {
                id: 4,
                span: span(0, 20),
                bound: 20,
            }],
        }
    }

    fn kinds(change: impl FnOnce(&mut Trials)) -> Vec<&'static str> {
        let mut trials = sound();
        change(&mut trials);
        judge_trials(&trials).iter().map(Fault::kind).collect()
    }

    #[test]
    fn sound_trials_pass_and_each_fault_is_named() {
        assert_eq!(kinds(|_| {}), [""; 0]);
        assert_eq!(kinds(|t| t.attempts[0].span.began = 21), ["revived"]);
        assert_eq!(kinds(|t| t.watches[0].until = 26), ["unclosed"]);
        assert_eq!(kinds(|t| t.holds[1].until = 41), ["crowded"]);
        assert_eq!(kinds(|t| t.admissions[2].began = 58), [""; 0]);
        let third_in_window = |t: &mut Trials| {
            t.admissions[2].began = 50;
            t.admissions[2].ended = 59;
        };
        assert_eq!(kinds(third_in_window), ["flooded"]);
        assert_eq!(kinds(|t| t.answers[1].choice = 8), ["redecided"]);
        assert_eq!(kinds(|t| t.waits[0].span.ended = Some(21)), ["late"]);
        assert_eq!(kinds(|t| t.waits[0].span.ended = None), ["late"]);
    }

    #[test]
    fn an_end_without_an_answer_claims_nothing() {
        let unknown = |t: &mut Trials| {
            t.endings[0].span.ended = None;
            t.attempts[0].span.began = 21;
            t.watches[0].until = 99;
        };
        assert_eq!(kinds(unknown), [""; 0]);
    }
}
