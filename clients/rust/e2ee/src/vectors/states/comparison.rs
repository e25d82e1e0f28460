//! Keys that people compared, or that an agent's link named, and the other keys beside them.

use blindpipe_e2ee::safety;

use super::*;

/// The cases, in the order of the file.
pub(super) fn cases() -> Vec<Value> {
    let cases = [
        numbers(),
        strict_numbers(),
        one_key(),
        link(),
        link_beside_another_key(),
        link_to_a_retired_key(),
        link_to_a_missing_key(),
        late_link(),
        introductions(),
    ];
    cases.into_iter().map(Case::end).collect()
}

/// The digits of these keys of the person and of Bob.
fn digits(mine: &[u8], bobs: &[u8]) -> String {
    let side = |numbers: &[u8]| -> Vec<_> { numbers.iter().map(|n| *keys(*n).public()).collect() };
    safety::number((AS_USER, &side(mine)), (BOB, &side(bobs)))
}

fn numbers() -> Case {
    let mut case = Case::new(
        "digits stand for all accepted keys of both, and verify these",
        AS_USER,
        &json!({}),
    );
    case.directory(BOB, &[key(3), key(2)], &[]);
    case.safety_number(BOB, None);
    case.directory(
        AS_USER,
        &[key(1), key(5)],
        &[told("own_list_key", AS_USER, 5)],
    );
    let number = digits(&[1], &[2, 3]);
    case.safety_number(BOB, Some(&number));
    case.verify_number(BOB, &digits(&[1], &[2]), false, &[]);
    case.standing(BOB, id(2), "known", false, true);
    case.directory(
        BOB,
        &[key(2), key(3), key(4)],
        &[told("waiting_key", BOB, 4)],
    );
    case.safety_number(BOB, Some(&number));
    case.directory(BOB, &[key(2), key(4)], &[told("retired_key", BOB, 3)]);
    case.verify_number(BOB, &number, false, &[]);
    case.safety_number(BOB, Some(&digits(&[1], &[2])));
    case.verify_number(BOB, &digits(&[1], &[2]).replace(' ', ""), true, &[]);
    case.standing(BOB, id(2), "verified", false, true);
    case.standing(BOB, id(4), "waiting", false, true);
    case.safety_number(AS_USER, None);
    case
}

fn strict_numbers() -> Case {
    let strict = json!({"policy": "strict"});
    let mut case = Case::new(
        "where no key is accepted, digits stand for those that wait",
        AS_USER,
        &strict,
    );
    case.directory(AS_USER, &[key(1)], &[]);
    case.directory(BOB, &[key(2)], &[told("waiting_key", BOB, 2)]);
    let number = digits(&[1], &[2]);
    case.safety_number(BOB, Some(&number));
    case.verify_number(BOB, &number, true, &[]);
    case.standing(BOB, id(2), "verified", false, true);
    case
}

fn one_key() -> Case {
    let mut case = Case::of_user("beside a verified key, others wait");
    let list = [key(2), key(6), introduced(BOB, 7, 6)];
    let mut case_list = [told("waiting_key", BOB, 6), told("waiting_key", BOB, 7)];
    case_list.sort_by_key(|notice| notice[2].to_string());
    case.directory(BOB, &list[..1], &[]);
    case.directory(BOB, &list, &case_list);
    for number in [6, 7] {
        case.with_key("confirm", BOB, id(number), done(true));
    }
    let mut case = ready(case);
    case.compare("verify", BOB, 2, &case_list);
    case.sealing(None, TIME, json!({"rotate": 1}));
    case.give(BOB, key(2), json!({"given": "secret"}));
    let waits = json!({"given": "nothing", "because": "waiting_key"});
    case.give(BOB, key(6), waits);
    // A tap takes the key all the same, and only that one.
    case.with_key("confirm", BOB, id(6), done(true));
    let list = [
        key(2),
        key(6),
        introduced(BOB, 7, 6),
        introduced(BOB, 8, 6),
        introduced(BOB, 9, 2),
    ];
    let notices = [told("introduced_key", BOB, 9), told("waiting_key", BOB, 8)];
    case.directory(BOB, &list, &notices);
    case.standing(BOB, id(6), "known", false, true);
    case.standing(BOB, id(7), "waiting", false, true);
    case.standing(BOB, id(9), "verified", false, true);
    case.compare("verify", BOB, 2, &[]);
    case.standing(BOB, id(6), "known", false, true);
    case
}

fn link() -> Case {
    let mut link = Case::new(
        "an agent's link verifies its key at first contact",
        AS_USER,
        &json!({}),
    );
    link.compare("link", AS_AGENT, 3, &[]);
    link.directory(AS_AGENT, &[key(3)], &[]);
    link.standing(AS_AGENT, id(3), "verified", false, true);
    let list = [key(3), introduced(AS_AGENT, 4, 3)];
    link.directory(AS_AGENT, &list, &[told("introduced_key", AS_AGENT, 4)]);
    link.directory(AS_AGENT, &list[1..], &[told("retired_key", AS_AGENT, 3)]);
    link.compare("link", AS_AGENT, 3, &[]);
    link.standing(AS_AGENT, id(4), "verified", false, true);
    link
}

fn link_beside_another_key() -> Case {
    let mut case = Case::new(
        "a link to a key lets the others of the first list wait",
        AS_USER,
        &json!({}),
    );
    case.compare("link", AS_AGENT, 3, &[]);
    let list = [key(3), key(4), introduced(AS_AGENT, 6, 3)];
    case.directory(AS_AGENT, &list, &[told("waiting_key", AS_AGENT, 4)]);
    case.standing(AS_AGENT, id(3), "verified", false, true);
    case.standing(AS_AGENT, id(4), "waiting", false, true);
    case.standing(AS_AGENT, id(6), "verified", false, true);
    case
}

fn link_to_a_retired_key() -> Case {
    let mut dead = Case::new(
        "a link to a retired key verifies nothing, and first keys wait",
        AS_USER,
        &json!({}),
    );
    dead.compare("link", AS_AGENT, 3, &[]);
    let list = [retired(key(3)), key(4)];
    let notices = [
        told("waiting_key", AS_AGENT, 4),
        told("link_retired", AS_AGENT, 3),
    ];
    dead.directory(AS_AGENT, &list, &notices);
    dead.standing(AS_AGENT, id(4), "waiting", false, true);
    dead
}

fn link_to_a_missing_key() -> Case {
    let mut case = Case::new(
        "while the key of a link is not listed, first keys wait",
        AS_USER,
        &json!({}),
    );
    case.compare("link", AS_AGENT, 3, &[]);
    let notices = [
        told("waiting_key", AS_AGENT, 4),
        told("link_retired", AS_AGENT, 3),
    ];
    case.directory(AS_AGENT, &[key(4)], &notices);
    case.standing(AS_AGENT, id(4), "waiting", false, true);
    case.directory(AS_AGENT, &[key(4)], &[]);
    case.with_key("confirm", AS_AGENT, id(4), done(true));
    case.directory(AS_AGENT, &[key(4)], &[]);
    case.standing(AS_AGENT, id(4), "known", false, true);
    // The link is kept until its key is shown.
    let list = [key(4), key(3)];
    case.directory(AS_AGENT, &list, &[told("waiting_key", AS_AGENT, 4)]);
    case.standing(AS_AGENT, id(3), "verified", false, true);
    case.standing(AS_AGENT, id(4), "waiting", false, true);
    case
}

fn late_link() -> Case {
    let mut case = Case::new(
        "a link that is followed late lets known keys wait, once",
        AS_USER,
        &json!({}),
    );
    case.directory(AS_AGENT, &[key(4)], &[]);
    let missing = told("link_retired", AS_AGENT, 3);
    let notices = [told("waiting_key", AS_AGENT, 4), missing.clone()];
    case.compare("link", AS_AGENT, 3, &notices);
    case.standing(AS_AGENT, id(4), "waiting", false, true);
    case.with_key("confirm", AS_AGENT, id(4), done(true));
    case.compare("link", AS_AGENT, 3, &[missing]);
    case.standing(AS_AGENT, id(4), "known", false, true);
    case
}

fn introductions() -> Case {
    let mut case = Case::new(
        "what a lost device introduced is found, over others too",
        AS_USER,
        &json!({}),
    );
    let list = [
        key(1),
        introduced(AS_USER, 2, 1),
        introduced(AS_USER, 3, 2),
        introduced(AS_USER, 4, 3),
        introduced(AS_USER, 5, 1),
    ];
    let mut notices: Vec<_> = (2..6).map(|n| told("introduced_key", AS_USER, n)).collect();
    notices.sort_by_key(|notice| notice[2].to_string());
    case.directory(AS_USER, &list, &notices);
    case.introduced_by("device-2", &["device-3", "device-4"]);
    let list = [&list[..2], &list[3..]].concat();
    case.directory(AS_USER, &list, &[told("retired_key", AS_USER, 3)]);
    case.introduced_by("device-2", &["device-4"]);
    case.introduced_by("device-5", &[]);
    case.introduced_by("unknown", &[]);
    case
}
