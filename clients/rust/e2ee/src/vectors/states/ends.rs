//! Keys with an end that the directory tells, before it and after it.

use super::*;

const END: u64 = TIME + 10 * MINUTE_MS;

/// The cases, in the order of the file.
pub(super) fn cases() -> Vec<Value> {
    let cases = [passes(), moves(), is_taken_back(), seals_and_introduces()];
    cases.into_iter().map(Case::end).collect()
}

/// Bob's message of a time, which comes at another.
fn sent(number: u8, time: u64, now: u64) -> Sent {
    Sent {
        place: message(number, None),
        time,
        created_at: time,
        now,
        ..Sent::by(BOB, 2)
    }
}

fn passes() -> Case {
    let left = [told("retired_key", BOB, 2)];
    let mut case = ready(Case::of_user(
        "a key's end that lies ahead passes with the clock",
    ));
    case.clock = Some(TIME);
    case.directory(BOB, &[ends(key(2), END)], &[]);
    case.standing(BOB, id(2), "known", false, true);
    case.message(&sent(1, TIME, TIME), shown("known", &[]));
    case.give(BOB, key(2), json!({"given": "secret"}));
    let after = END + MINUTE_MS;
    case.clock = Some(after);
    case.standing(BOB, id(2), "known", true, true);
    case.message(&sent(2, END - 1, after), shown("known", &left));
    let late = sent(3, END + 1, after);
    case.message(&late, refused("retired_key", &left));
    let history = Sent {
        live: false,
        ..late
    };
    case.message(&history, shown("known", &left));
    let refused = json!({"done": false, "notices": []});
    case.with_key("verify", BOB, id(2), refused);
    let nothing = json!({"given": "nothing", "because": "retired_key"});
    case.give(BOB, key(2), nothing);
    case.directory(BOB, &[ends(key(2), END)], &left);
    case.directory(BOB, &[ends(key(2), END)], &[]);
    case
}

fn moves() -> Case {
    let left = [told("retired_key", BOB, 2)];
    let mut case = ready(Case::of_user("each reading tells the end of a key anew"));
    case.clock = Some(TIME);
    let before = |minutes: u64| ends(key(2), TIME - minutes * MINUTE_MS);
    case.directory(BOB, &[before(1)], &left);
    case.message(&sent(1, TIME - 2 * MINUTE_MS, TIME), shown("known", &left));
    case.directory(BOB, &[before(10)], &[]);
    let between = sent(2, TIME - 2 * MINUTE_MS, TIME);
    case.message(&between, refused("retired_key", &left));
    case.directory(BOB, &[ends(key(2), END)], &[told("returned_key", BOB, 2)]);
    case.standing(BOB, id(2), "known", true, true);
    case.message(&sent(3, TIME, TIME), refused("retired_key", &left));
    case.with_key("confirm", BOB, id(2), done(true));
    case.directory(BOB, &[ends(key(2), END)], &[]);
    case.standing(BOB, id(2), "known", false, true);
    case.message(&sent(4, TIME, TIME), shown("known", &[]));
    case
}

fn is_taken_back() -> Case {
    let mut case = ready(Case::of_user(
        "an end that lies ahead can be taken back, or come early",
    ));
    case.clock = Some(TIME);
    case.directory(BOB, &[ends(key(2), END)], &[]);
    case.directory(BOB, &[key(2)], &[]);
    case.clock = Some(END);
    case.standing(BOB, id(2), "known", false, true);
    case.directory(BOB, &[ends(key(2), END + 10 * MINUTE_MS)], &[]);
    let mut notices = [told("waiting_key", BOB, 9), told("retired_key", BOB, 2)];
    case.directory(BOB, &[key(9)], &notices);
    notices.reverse();
    let gone = refused("retired_key", &notices[..1]);
    case.message(&sent(1, END, END), gone);
    case
}

fn seals_and_introduces() -> Case {
    let after = END + MINUTE_MS;
    let mut case = Case::of_user("a key whose end has passed makes no epoch and introduces nobody");
    case.clock = Some(TIME);
    case.directory(BOB, &[ends(key(2), END)], &[]);
    let late = More {
        now: Some(after),
        ..newest()
    };
    case.wrap((BOB, 2), 0xa1, 1, TIME, late);
    case.server_epoch(1, false, 0);
    case.sealing(None, after, json!({"rotate": 1}));
    case.clock = Some(after);
    let list = [ends(key(2), END), introduced(BOB, 3, 2)];
    let notices = [told("waiting_key", BOB, 3), told("retired_key", BOB, 2)];
    case.directory(BOB, &list, &notices);
    case
}
