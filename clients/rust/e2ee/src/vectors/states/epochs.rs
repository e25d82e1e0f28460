//! The secrets of a conversation: which of them seals, who rotates, and who is given a share.

use super::*;

/// The cases, in the order of the file.
pub(super) fn cases() -> Vec<Value> {
    [epoch_cases(), rotator_cases(), reader_cases()].concat()
}

fn epoch_cases() -> Vec<Value> {
    let rotate = |base: u32| json!({ "rotate": base });
    let mut newest_wins = Case::of_user("the newest wrap seals, whatever the server calls current");
    newest_wins.sealing(None, TIME, rotate(0));
    let sid = newest_wins.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    newest_wins.server_epoch(1, false, 5);
    newest_wins.seals_with(1, 0xa1);
    let more = More {
        previous: sid,
        ..newest()
    };
    newest_wins.wrap((AS_USER, 1), 0xa2, 2, TIME + 1, more);
    newest_wins.server_epoch(2, false, 0);
    newest_wins.seals_with(2, 0xa2);
    newest_wins.wrap((BOB, 2), 0xa1, 1, TIME, More::default());
    newest_wins.seals_with(2, 0xa2);
    newest_wins.server_epoch(1, false, 0);
    newest_wins.sealing(None, TIME, rotate(1));
    newest_wins.server_epoch(9, false, 0);
    newest_wins.seals_with(2, 0xa2);
    newest_wins.sealing(Some(3), TIME, rotate(9));

    let mut due = Case::of_user("people rotate when it is due");
    due.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    due.server_epoch(1, true, 0);
    due.sealing(None, TIME, rotate(1));
    due.server_epoch(1, false, 10_000);
    due.sealing(None, TIME, rotate(1));
    due.server_epoch(1, false, 9_999);
    due.seals_with(1, 0xa1);
    due.sealing(None, TIME + 7 * DAY_MS + 1, rotate(1));
    due.directory(
        BOB,
        &[key(2), introduced(BOB, 6, 2)],
        &[told("introduced_key", BOB, 6)],
    );
    due.sealing(None, TIME, rotate(1));

    [newest_wins, due].into_iter().map(Case::end).collect()
}

fn rotator_cases() -> Vec<Value> {
    let rotate = |base: u32| json!({ "rotate": base });
    let mut outsider = Case::of_user("an epoch by somebody who is no member opens and never seals");
    outsider.directory(EVE, &[key(9)], &[]);
    outsider.wrap((EVE, 9), 0xa1, 1, TIME, newest());
    outsider.server_epoch(1, false, 0);
    outsider.sealing(None, TIME, rotate(1));
    outsider.message(&Sent::by(BOB, 2), shown("known", &[]));

    let mut retired_rotator = Case::of_user("an epoch by a retired key opens and never seals");
    retired_rotator.directory(
        BOB,
        &[key(7)],
        &[told("waiting_key", BOB, 7), told("retired_key", BOB, 2)],
    );
    retired_rotator.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    retired_rotator.server_epoch(1, false, 0);
    retired_rotator.sealing(None, TIME, rotate(1));

    let mut left = Case::of_user("what a member made before leaving goes on until the rotation");
    left.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    left.server_epoch(1, false, 0);
    left.members(&[AS_USER, AS_AGENT], &[said("member_removed", BOB)]);
    left.sealing(None, TIME, rotate(1));
    left.wrap((AS_USER, 1), 0xa2, 2, TIME + 1, newest());
    left.server_epoch(2, false, 0);
    left.seals_with(2, 0xa2);

    let mut waiting = Case::of_user("a wrap by a key that waits opens, and is not the newest");
    waiting.directory(BOB, &[key(2), key(8)], &[told("waiting_key", BOB, 8)]);
    waiting.wrap((BOB, 8), 0xa1, 1, TIME, More::default());
    waiting.server_epoch(1, false, 0);
    waiting.sealing(None, TIME, rotate(1));
    waiting.message(&Sent::by(BOB, 2), shown("known", &[]));

    let mut ahead = Case::of_user("a wrap from the future is not the newest");
    ahead.wrap(
        (BOB, 2),
        0xa1,
        1,
        TIME + 10 * MINUTE_MS + 1,
        More::default(),
    );
    ahead.wrap((BOB, 2), 0xa2, 1, TIME + 10 * MINUTE_MS, newest());

    let mut restored = Case::of_user("after a restored database a later secret is the newest");
    restored.wrap((BOB, 2), 0xa1, 9, TIME, newest());
    restored.server_epoch(3, false, 0);
    restored.sealing(None, TIME, rotate(3));
    let more = More {
        now: Some(TIME + 1),
        ..newest()
    };
    restored.wrap((AS_USER, 1), 0xa2, 4, TIME + 1, more);
    restored.server_epoch(4, false, 0);
    restored.seals_with(4, 0xa2);

    let cases = [outsider, retired_rotator, left, waiting, ahead, restored];
    cases.into_iter().map(Case::end).collect()
}

fn reader_cases() -> Vec<Value> {
    let rotate = |base: u32| json!({ "rotate": base });
    let mut split = Case::of_user("somebody was given something else");
    split.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    let other = More {
        previous: [0x77; 16],
        notices: vec![told("other_secret_before", BOB, 2)],
        ..newest()
    };
    split.wrap((BOB, 2), 0xa2, 2, TIME + 1, other);
    let unknown = Sent {
        epoch: 2,
        secret: 0xee,
        ..Sent::by(BOB, 2)
    };
    split.message(
        &unknown,
        refused("no_epoch_key", &[said("other_secret", BOB)]),
    );
    let later = Sent {
        epoch: 3,
        ..unknown
    };
    split.message(&later, refused("no_epoch_key", &[]));

    let mut waits = Case::of_agent("an agent cannot rotate: it waits");
    waits.sealing(None, TIME, json!({"wait": true}));
    waits.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    waits.server_epoch(1, true, 20_000);
    waits.seals_with(1, 0xa1);
    waits.sealing(Some(2), TIME, json!({"wait": true}));
    waits.server_epoch(0, false, 0);
    waits.sealing(None, TIME, json!({"wait": true}));

    let mut lane = Case::new(
        "an addressed agent believes its lane by the signature",
        AS_ADDRESSED,
        &json!({}),
    );
    lane.directory(BOB, &[key(2)], &[]);
    lane.members(&[AS_USER, BOB], &[]);
    let stranger = More {
        refused: Some("unknown_sender_key"),
        ..More::default()
    };
    lane.wrap((BOB, 9), 0xa1, 1, TIME, stranger);
    lane.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    lane.server_epoch(1, false, 0);
    lane.seals_with(1, 0xa1);

    let mut refused_wraps = Case::of_user("wraps that are not for this client");
    for (wrap, reason) in [
        ("00", "no_epoch_key"),
        ("", "malformed"),
        ("02", "unknown_version"),
    ] {
        let event = json!({"do": "wrap", "epoch": 1, "wrap": wrap, "now": TIME});
        refused_wraps.step(event, json!({"refused": reason}));
    }

    let mut gives = Case::of_user("who is given what");
    gives.give(BOB, key(2), json!({"given": "secret"}));
    gives.give(AS_AGENT, key(3), json!({"given": "secret"}));
    gives.give(AS_ADDRESSED, key(4), json!({"given": "lane"}));
    gives.give(
        EVE,
        key(9),
        json!({"given": "nothing", "because": "not_member"}),
    );
    gives.give(
        BOB,
        key(9),
        json!({"given": "nothing", "because": "waiting_key"}),
    );
    gives.directory(
        BOB,
        &[key(9)],
        &[told("waiting_key", BOB, 9), told("retired_key", BOB, 2)],
    );
    gives.give(
        BOB,
        key(2),
        json!({"given": "nothing", "because": "retired_key"}),
    );
    gives.with_key("confirm", BOB, id(9), done(true));
    gives.give(BOB, key(9), json!({"given": "secret"}));

    let mut sees_all = Case::of_user("an agent that became `all` and a new member are named");
    sees_all.wrap((AS_USER, 1), 0xa1, 1, TIME, newest());
    sees_all.server_epoch(1, false, 0);
    let everybody = [AS_USER, BOB, AS_AGENT, AS_ADDRESSED, EVE];
    let notices = [
        said("member_added", EVE),
        said("agent_sees_all", AS_ADDRESSED),
    ];
    sees_all.members_and(&everybody, &[], &notices);
    sees_all.sealing(None, TIME, rotate(1));
    sees_all.give(AS_ADDRESSED, key(4), json!({"given": "secret"}));
    let cases = [split, waits, lane, refused_wraps, gives, sees_all];
    cases.into_iter().map(Case::end).collect()
}
