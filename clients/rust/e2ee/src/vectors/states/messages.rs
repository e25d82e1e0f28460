//! Messages: shown, refused, late, repeated, or in clear.

use super::*;

/// The cases, in the order of the file.
pub(super) fn cases() -> Vec<Value> {
    [message_cases(), time_cases(), clear_cases()].concat()
}

fn message_cases() -> Vec<Value> {
    let mut replay = ready(Case::of_user("a message is shown once"));
    replay.message(&Sent::by(BOB, 2), shown("known", &[]));
    replay.message(&Sent::by(BOB, 2), json!({"repeated": true}));
    let by_agent = Sent::by(AS_AGENT, 3);
    replay.message(&by_agent, shown("known", &[]));
    let unopened = Sent {
        epoch: 5,
        place: message(2, None),
        ..Sent::by(BOB, 2)
    };
    replay.message(&unopened, refused("no_epoch_key", &[]));
    let opened = Sent {
        epoch: 1,
        ..unopened
    };
    replay.message(&opened, shown("known", &[]));

    let mut keys_of_sender = ready(Case::of_user("what a sender's key is worth"));
    keys_of_sender.message(&Sent::by(BOB, 9), refused("unknown_sender_key", &[]));
    keys_of_sender.directory(BOB, &[key(2), key(9)], &[told("waiting_key", BOB, 9)]);
    let waits = shown("waiting", &[told("waiting_key", BOB, 9)]);
    keys_of_sender.message(&Sent::by(BOB, 9), waits);
    keys_of_sender.compare("verify", BOB, 2, &[]);
    let second = Sent {
        place: message(2, None),
        ..Sent::by(BOB, 2)
    };
    keys_of_sender.message(&second, shown("verified", &[]));
    keys_of_sender.directory(BOB, &[key(9)], &[told("retired_key", BOB, 2)]);
    let third = Sent {
        place: message(3, None),
        ..Sent::by(BOB, 2)
    };
    let left = [told("retired_key", BOB, 2)];
    keys_of_sender.message(&third, refused("retired_key", &left));
    let history = Sent {
        live: false,
        ..third
    };
    keys_of_sender.message(&history, shown("verified", &left));
    keys_of_sender.directory(EVE, &[key(8)], &[]);
    keys_of_sender.message(
        &Sent::by(EVE, 8),
        shown("known", &[said("not_member", EVE)]),
    );

    [replay, keys_of_sender]
        .into_iter()
        .map(Case::end)
        .collect()
}

fn time_cases() -> Vec<Value> {
    let mut times = ready(Case::of_user("times that are far off are shown"));
    let off = Sent {
        created_at: TIME + 5 * MINUTE_MS + 1,
        ..Sent::by(BOB, 2)
    };
    times.message(&off, shown("known", &[said("other_time", BOB)]));
    let old = Sent {
        now: TIME + 40 * DAY_MS,
        place: message(2, None),
        ..Sent::by(BOB, 2)
    };
    times.message(&old, shown("known", &[]));

    let mut quotes = ready(Case::of_user("a quote is shown only with a fitting `re`"));
    let question = Sent::by(AS_AGENT, 3);
    quotes.message(&question, shown("known", &[]));
    let answered = fingerprint(&question.envelope());
    let re = to_base64(&answered);
    let answer = |number, re: &str, answered| Sent {
        place: message(number, Some([0x44; 16])),
        content: json!({"type": "answer", "choice": "yes", "re": re}).to_string(),
        answered,
        ..Sent::by(BOB, 2)
    };
    quotes.message(&answer(2, &re, Some(answered)), shown("known", &[]));
    let no_quote = shown("known", &[said("no_quote", BOB)]);
    quotes.message(&answer(3, &re, Some([1; 32])), no_quote.clone());
    quotes.message(&answer(4, &re, None), no_quote.clone());
    quotes.message(&answer(5, "nonsense", Some(answered)), no_quote);

    let stream = || Sent {
        place: Place::Delta {
            stream_id: blindpipe_e2ee::ids::ulid([1; 16]),
            n: 0,
        },
        content: "{\"append\":\"Hel\"}".to_owned(),
        ..Sent::by(AS_AGENT, 3)
    };
    let mut deltas = ready(Case::of_user(
        "deltas are shown while they are fresh and the end is not known",
    ));
    deltas.message(&stream(), shown("known", &[]));
    let old = Sent {
        now: TIME + 5 * MINUTE_MS + 1,
        ..stream()
    };
    deltas.message(&old, refused("stale", &[]));
    let clear = Sent {
        clear: true,
        ..stream()
    };
    deltas.message(&clear, refused("clear", &[]));
    deltas.message(&Sent::by(AS_AGENT, 3), shown("known", &[]));
    deltas.message(&stream(), json!({"repeated": true}));

    let mut handler = ready(Case::of_agent(
        "a handler gets nothing of another time, and nothing by a key that waits",
    ));
    let old = |days| Sent {
        now: TIME + days * DAY_MS,
        place: message(days as u8, None),
        ..Sent::by(BOB, 2)
    };
    handler.message(&old(31), shown("known", &[]));
    handler.message(&old(32), refused("stale", &[]));
    let ahead = |days| Sent {
        now: TIME - days * DAY_MS,
        place: message(100 + days as u8, None),
        ..Sent::by(BOB, 2)
    };
    handler.message(&ahead(31), shown("known", &[]));
    handler.message(&ahead(32), refused("stale", &[]));
    handler.directory(BOB, &[key(2), key(9)], &[told("waiting_key", BOB, 9)]);
    let waits = refused("unknown_sender_key", &[told("waiting_key", BOB, 9)]);
    handler.message(&Sent::by(BOB, 9), waits);
    handler.with_key("confirm", BOB, id(9), done(true));
    handler.message(&Sent::by(BOB, 9), shown("known", &[]));
    let cases = [times, quotes, deltas, handler];
    cases.into_iter().map(Case::end).collect()
}

fn clear_cases() -> Vec<Value> {
    let clear = |sender, keys| Sent {
        clear: true,
        ..Sent::by(sender, keys)
    };
    let mut person =
        Case::of_user("clear text stands under its mark, until anything was encrypted");
    let marked = json!({"shown": null, "notices": [said("not_encrypted", BOB)]});
    person.message(&clear(BOB, 2), marked);
    person.wrap((BOB, 2), 0xa1, 1, TIME, newest());
    person.message(&clear(BOB, 2), refused("clear", &[]));

    let mut agent = Case::of_agent("an agent with a key handles nothing that comes in clear");
    agent.message(&clear(BOB, 2), refused("clear", &[]));

    let mut allows = Case::new(
        "an agent that allows clear text",
        AS_AGENT,
        &json!({"plaintext": true}),
    );
    allows.people();
    let marked = json!({"shown": null, "notices": [said("not_encrypted", BOB)]});
    allows.message(&clear(BOB, 2), marked);
    allows.server_epoch(1, false, 0);
    allows.message(&clear(BOB, 2), refused("clear", &[]));

    let mut writes = Case::new(
        "clear text is written only where a person chose it",
        AS_USER,
        &json!({}),
    );
    let mut plain = key(3);
    plain["schemes"] = json!([]);
    writes.directory(BOB, &[key(2)], &[]);
    writes.directory(AS_AGENT, &[plain], &[]);
    writes.members_and(&[AS_USER, BOB, AS_AGENT], &[], &[]);
    writes.writing(false, "ask_person");
    writes.writing(true, "clear");
    writes.directory(AS_AGENT, &[key(3)], &[]);
    writes.writing(true, "encrypted");
    let mut spoke = key(3);
    spoke["schemes"] = json!([]);
    writes.directory(AS_AGENT, &[spoke], &[]);
    writes.writing(true, "encrypted");
    [person, agent, allows, writes]
        .into_iter()
        .map(Case::end)
        .collect()
}
