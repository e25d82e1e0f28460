//! Envelopes that readers refuse, each with its reason.

use super::*;

/// How a reader of a refused envelope is told to open it.
struct Refused<'a> {
    name: &'static str,
    reason: &'static str,
    envelope: Vec<u8>,
    craft: &'a Craft<'a>,
    signer: Option<PrivateKeys>,
    by_slot: bool,
    place: Option<Place>,
}

pub(super) fn all() -> Vec<Value> {
    let mut rows = Vec::new();
    forged_headers(&mut rows);
    forged_kinds(&mut rows);
    forged_texts(&mut rows);
    rows
}

fn refuse(rows: &mut Vec<Value>, name: &'static str, reason: &'static str, craft: &Craft<'_>) {
    let plain = Refused {
        name,
        reason,
        envelope: craft.seal(),
        craft,
        signer: Some(craft.keys.clone()),
        by_slot: false,
        place: None,
    };
    push(rows, plain);
}

fn push(rows: &mut Vec<Value>, case: Refused<'_>) {
    let key = if case.by_slot {
        cast::lane_key()
    } else {
        cast::epoch_key()
    };
    let place = case.place.as_ref().unwrap_or(&case.craft.place);
    let opened = envelope::open(
        &case.envelope,
        CONVERSATION,
        case.craft.sender,
        place,
        |epoch, sid| (epoch == EPOCH && sid == key.sid()).then_some(&key),
        |id| {
            case.signer
                .as_ref()
                .map(|keys| *keys.public())
                .filter(|keys| keys.key_id() == id)
        },
    );
    let reason = opened.map_or_else(blindpipe_e2ee::Error::reason, |_| "opened");
    assert_eq!(reason, case.reason, "{}", case.name);
    let public = case.signer.as_ref().map(|keys| *keys.public());
    rows.push(json!({
        "name": case.name,
        "reason": case.reason,
        "sender": hex(case.craft.sender.to_bytes()),
        "public_key": public.map(|keys| hex(keys.public_key())),
        "signing_public_key": public.map(|keys| hex(keys.signing_public_key())),
        "place": place_json(place),
        "by_slot": case.by_slot,
        "envelope": hex(&case.envelope),
    }));
}

fn forged_headers(rows: &mut Vec<Value>) {
    let lane = cast::lane_key().secret().clone();
    let other_lane = cast::epoch_key().addressed([1; 16]).expect("held");
    let honest = Craft::honest();
    let slot = (lane.clone(), ADDRESSED, None);
    let wrong = (lane.clone(), ADDRESSED, Some([0x77; 32]));
    let early = (other_lane, [1; 16], None);
    let with = |slots| Craft {
        slots,
        ..Craft::honest()
    };
    let twice = [slot.clone(), slot.clone()];
    let unordered = [slot, early.clone()];
    let (other, wrong) = ([early], [wrong]);
    refuse(rows, "two slots for one agent", "malformed", &with(&twice));
    refuse(rows, "slots out of order", "malformed", &with(&unordered));
    for (name, reason, slots) in [
        (
            "a slot with another key than everyone's",
            "wrong_key",
            &wrong,
        ),
        ("no slot for the reader", "no_epoch_key", &other),
    ] {
        let craft = with(slots);
        let case = Refused {
            name,
            reason,
            envelope: craft.seal(),
            craft: &craft,
            signer: Some(cast::device()),
            by_slot: true,
            place: None,
        };
        push(rows, case);
    }
    let lane_of = |sender, keys| Craft {
        lane: 2,
        lane_secret: lane.clone(),
        tail: ADDRESSED.to_vec(),
        sender,
        keys,
        ..Craft::honest()
    };
    let by_other = lane_of(AS_USER, cast::device());
    refuse(
        rows,
        "an agent's lane written by somebody else",
        "malformed",
        &by_other,
    );
    let beside = Craft {
        slots: &unordered[1..],
        ..lane_of(AS_ADDRESSED, cast::agent_key().keys())
    };
    refuse(rows, "slots beside an agent's lane", "malformed", &beside);
    let sealed = honest.seal();
    let mut later = sealed.clone();
    later[7] += 1;
    let mut other_sid = sealed.clone();
    other_sid[8] ^= 1;
    for (name, reason, envelope) in [
        ("nothing", "malformed", Vec::new()),
        ("another version", "unknown_version", vec![2]),
        ("cut in the header", "malformed", sealed[..87].to_vec()),
        ("cut before the tag", "malformed", sealed[..100].to_vec()),
        (
            "cut in the ciphertext",
            "bad_ciphertext",
            sealed[..sealed.len() - 1].to_vec(),
        ),
        (
            "something after the end",
            "bad_ciphertext",
            [&sealed[..], &[0]].concat(),
        ),
        ("an epoch that is not held", "no_epoch_key", later),
        ("a secret that is not held", "no_epoch_key", other_sid),
    ] {
        let case = Refused {
            name,
            reason,
            envelope,
            craft: &honest,
            signer: Some(cast::device()),
            by_slot: false,
            place: None,
        };
        push(rows, case);
    }
}

fn forged_kinds(rows: &mut Vec<Value>) {
    let agent = || cast::agent_key().keys();
    let wanted = Craft {
        sender: AS_AGENT,
        keys: agent(),
        ..Craft::honest()
    };
    let elsewhere = Refused {
        name: "a message where a tool request is wanted",
        reason: "unknown_kind",
        envelope: wanted.seal(),
        craft: &wanted,
        signer: Some(agent()),
        by_slot: false,
        place: Some(Place::Request(request())),
    };
    push(rows, elsewhere);
    let by_user = Craft {
        kind: 3,
        place: Place::Request(request()),
        content: REQUEST.into(),
        ..Craft::honest()
    };
    refuse(rows, "a tool request by a person", "unknown_kind", &by_user);
    let by_agent = Craft {
        kind: 4,
        place: response("executed", None),
        sender: AS_AGENT,
        keys: agent(),
        ..Craft::honest()
    };
    refuse(rows, "a response by an agent", "unknown_kind", &by_agent);
    let answered = Craft {
        kind: 4,
        place: response("executed", None),
        ..Craft::honest()
    };
    let moved = |name, place| Refused {
        name,
        reason: "bad_ciphertext",
        envelope: answered.seal(),
        craft: &answered,
        signer: Some(cast::device()),
        by_slot: false,
        place: Some(place),
    };
    let other_request = Place::Response {
        digest: [0x50; 32],
        request_id: "r-1".to_owned(),
        status: "executed".to_owned(),
        reason: None,
    };
    push(rows, moved("a response to another request", other_request));
    push(
        rows,
        moved("a response with another status", response("denied", None)),
    );
}

fn forged_texts(rows: &mut Vec<Value>) {
    let honest = Craft::honest();
    let signers = [
        (
            "a signature by another device",
            "unknown_sender_key",
            Some(cast::other_device()),
        ),
        ("a sender without keys", "unknown_sender_key", None),
    ];
    for (name, reason, signer) in signers {
        let case = Refused {
            name,
            reason,
            envelope: honest.seal(),
            craft: &honest,
            signer,
            by_slot: false,
            place: None,
        };
        push(rows, case);
    }
    let short = b"{\"a\":1}".to_vec();
    let exact = short.len() + 96;
    let changed = [
        ("padding of ones", "bad_padding", Some((128, 1)), None),
        ("too little padding", "bad_padding", Some((exact, 0)), None),
        ("too much padding", "bad_padding", Some((256, 0)), None),
        ("no room for a length", "bad_padding", Some((95, 0)), None),
        (
            "a signature of another text",
            "bad_signature",
            None,
            Some(cast::device().sign(b"x")),
        ),
        ("a signature of zeros", "bad_signature", None, Some([0; 64])),
        (
            "a signature of small order",
            "bad_signature",
            None,
            Some(small_order_signature()),
        ),
    ];
    for (name, reason, padding, signature) in changed {
        let craft = Craft {
            padding,
            signature,
            content: short.clone(),
            ..Craft::honest()
        };
        refuse(rows, name, reason, &craft);
    }
    for (name, content) in [
        ("a list", &b"[]"[..]),
        (
            "a number that languages read differently",
            b"{\"n\":9007199254740993}",
        ),
        ("no text", b"\xff"),
        ("nothing in it", b""),
    ] {
        let craft = Craft {
            content: content.to_vec(),
            ..Craft::honest()
        };
        refuse(rows, name, "not_json", &craft);
    }
}

/// R is the neutral point, S is zero.
fn small_order_signature() -> [u8; 64] {
    let mut signature = [0; 64];
    signature[0] = 1;
    signature
}
