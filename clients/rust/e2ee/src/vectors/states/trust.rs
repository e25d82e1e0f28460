//! Which keys a client believes, and who the members are.

use super::*;

/// The cases, in the order of the file.
pub(super) fn cases() -> Vec<Value> {
    [trust_cases(), list_cases()].concat()
}

fn trust_cases() -> Vec<Value> {
    let mut first = Case::new(
        "first keys are known, later ones wait for a tap",
        AS_USER,
        &json!({}),
    );
    first.directory(BOB, &[key(2)], &[]);
    first.standing(BOB, id(2), "known", false, true);
    first.directory(BOB, &[key(2), key(3)], &[told("waiting_key", BOB, 3)]);
    first.standing(BOB, id(3), "waiting", false, true);
    first.directory(BOB, &[key(2), key(3)], &[]);
    first.with_key("confirm", BOB, id(3), done(true));
    first.standing(BOB, id(3), "known", false, true);
    first.with_key("confirm", BOB, id(9), done(false));

    let strict = json!({"policy": "strict"});
    let mut strict = Case::new(
        "under the strict policy first keys wait too",
        AS_USER,
        &strict,
    );
    strict.directory(BOB, &[key(2)], &[told("waiting_key", BOB, 2)]);
    strict.with_key("confirm", BOB, id(2), done(true));
    let list = [key(2), introduced(BOB, 3, 2)];
    strict.directory(BOB, &list, &[told("introduced_key", BOB, 3)]);
    strict.standing(BOB, id(3), "introduced", false, true);

    let mut chain = Case::new("an introduced key introduces the next", AS_USER, &json!({}));
    chain.directory(BOB, &[key(2)], &[]);
    let list = [introduced(BOB, 4, 3), introduced(BOB, 3, 2), key(2)];
    let mut notices = [
        told("introduced_key", BOB, 3),
        told("introduced_key", BOB, 4),
    ];
    notices.sort_by_key(|notice| notice[2].to_string());
    chain.directory(BOB, &list, &notices);
    chain.compare("verify", BOB, 2, &[]);
    chain.standing(BOB, id(4), "verified", false, true);

    let mut stolen = Case::new("a retired key introduces nobody", AS_USER, &json!({}));
    stolen.directory(BOB, &[key(2), key(3)], &[]);
    stolen.directory(BOB, &[key(3)], &[told("retired_key", BOB, 2)]);
    stolen.standing(BOB, id(2), "known", true, true);
    let list = [key(3), introduced(BOB, 4, 2)];
    stolen.directory(BOB, &list, &[told("waiting_key", BOB, 4)]);

    let mut forged = Case::new(
        "an introduction of another device counts for nothing",
        AS_USER,
        &json!({}),
    );
    forged.directory(BOB, &[key(2)], &[]);
    let mut moved = introduced(BOB, 3, 2);
    moved["device_id"] = "another".into();
    forged.directory(BOB, &[key(2), moved], &[told("waiting_key", BOB, 3)]);
    forged.directory(BOB, &[key(2), introduced(EVE, 3, 2)], &[]);
    forged.standing(BOB, id(3), "waiting", false, true);

    let cases = [first, strict, chain, stolen, forged];
    cases.into_iter().map(Case::end).collect()
}

fn list_cases() -> Vec<Value> {
    let mut back = Case::new(
        "a retired key comes back only by a tap",
        AS_USER,
        &json!({}),
    );
    back.directory(BOB, &[key(2), key(3)], &[]);
    back.directory(
        BOB,
        &[key(2), retired(key(3))],
        &[told("retired_key", BOB, 3)],
    );
    back.directory(BOB, &[key(2), key(3)], &[told("returned_key", BOB, 3)]);
    back.standing(BOB, id(3), "known", true, true);
    let refused = json!({"done": false, "notices": []});
    back.with_key("verify", BOB, id(3), refused);
    back.with_key("confirm", BOB, id(3), done(true));
    back.standing(BOB, id(3), "known", false, true);

    let mut own = Case::new(
        "an unknown key on one's own list is an alarm, each time",
        AS_USER,
        &json!({}),
    );
    own.directory(
        AS_USER,
        &[key(1), introduced(AS_USER, 2, 1)],
        &[told("introduced_key", AS_USER, 2)],
    );
    own.standing(AS_USER, id(2), "verified", false, true);
    for _ in 0..2 {
        own.directory(
            AS_USER,
            &[key(1), key(2), key(3)],
            &[told("own_list_key", AS_USER, 3)],
        );
    }

    let mut unusable = Case::new("a key of small order is no key", AS_USER, &json!({}));
    let mut small = key(3);
    small["signing_public_key"] = format!("01{}", "00".repeat(31)).into();
    unusable.directory(BOB, &[key(2), small.clone()], &[said("unusable_key", BOB)]);
    unusable.members(&[AS_USER, BOB], &[]);
    unusable.give(
        BOB,
        small,
        json!({"given": "nothing", "because": "unusable_key"}),
    );
    unusable.give(BOB, key(2), json!({"given": "secret"}));

    let cases = [back, own, unusable];
    cases.into_iter().map(Case::end).collect()
}
