//! Every single-byte change of an envelope and of a wrap, with the reason that it fails for.

use std::{collections::BTreeMap, env};

use blindpipe_e2ee::{
    EpochKey, Error, Principal,
    envelope::{self, Draft, Place, View},
    wrap::{self, Recipient, Rotation},
};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::vectors::{
    cast::{self, ADDRESSED, AS_USER, CONVERSATION, EPOCH, MESSAGE, OTHER_USER, TIME, USER},
    hold,
    support::{hex, place_json},
};

/// The result of each changed byte: the reason that most values give, and the others by value.
struct Row {
    reason: &'static str,
    except: BTreeMap<String, &'static str>,
}

/// From `slow` on a change costs an exchange of keys: all values are tried when the file is
/// written, else three.
fn rows(bytes: &[u8], slow: usize, open: impl Fn(&[u8]) -> Error) -> Vec<Row> {
    let all = env::var_os("UPDATE_VECTORS").is_some();
    let mut changed = bytes.to_vec();
    let mut rows = Vec::new();
    for at in 0..bytes.len() {
        let mut reasons = Vec::new();
        for flip in (1..=u8::MAX).filter(|flip| all || at < slow || [1, 0x80, 0xff].contains(flip))
        {
            changed[at] = bytes[at] ^ flip;
            reasons.push((changed[at], open(&changed).reason()));
        }
        changed[at] = bytes[at];
        rows.push(row(&reasons));
    }
    rows
}

fn row(reasons: &[(u8, &'static str)]) -> Row {
    let mut counts = BTreeMap::new();
    for (_, reason) in reasons {
        *counts.entry(*reason).or_insert(0) += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let reason = most.expect("255 values").0;
    let others = reasons.iter().filter(|other| other.1 != reason);
    let except = others
        .map(|(value, other)| (hex([*value]), *other))
        .collect();
    Row { reason, except }
}

/// Neighbours with one reason and no exception share a range.
fn ranges(rows: &[Row]) -> Vec<Value> {
    let mut ranges: Vec<(usize, usize, &Row)> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        match ranges.last_mut() {
            Some((_, to, last))
                if last.reason == row.reason && last.except.is_empty() && row.except.is_empty() =>
            {
                *to = at + 1;
            }
            _ => ranges.push((at, at + 1, row)),
        }
    }
    let json = |(from, to, row): &(usize, usize, &Row)| json!({"from": from, "to": to, "reason": row.reason, "except": row.except});
    ranges.iter().map(json).collect()
}

/// The reason that the tables of `docs/encryption.md` give, for every byte that has only one.
fn expect(ranges: &[Value], expected: &[(u64, u64, &str)]) {
    for (from, to, reason) in expected {
        let fits = |range: &&Value| {
            range["from"].as_u64() <= Some(*from) && range["to"].as_u64() >= Some(*to)
        };
        let range = ranges
            .iter()
            .find(fits)
            .unwrap_or_else(|| panic!("{from} to {to}: {ranges:?}"));
        assert_eq!(range["reason"], *reason, "{from} to {to}");
    }
}

/// One envelope with a slot, opened with the epoch's secret, or by the slot.
fn envelope_row(reader: &EpochKey, expected: &[(u64, u64, &str)]) -> Value {
    let (key, keys) = (cast::epoch_key(), cast::device());
    let place = Place::Message {
        client_message_id: MESSAGE,
        in_reply_to: None,
    };
    let draft = Draft {
        key: &key,
        sender: AS_USER,
        sender_keys: &keys,
        place: &place,
        readers: &[ADDRESSED],
        time: TIME,
        view: View::default(),
        content: b"{\"type\":\"text\",\"text\":\"hello\"}",
    };
    let sealed = envelope::seal_with_salt(&draft, [0x0d; 16]).expect("seals");
    let open = |bytes: &[u8]| {
        let opened = envelope::open(
            bytes,
            CONVERSATION,
            AS_USER,
            &place,
            |epoch, sid| (epoch == EPOCH && sid == reader.sid()).then_some(reader),
            |id| (id == keys.key_id()).then_some(*keys.public()),
        );
        opened.expect_err("refused")
    };
    let ranges = ranges(&rows(&sealed, sealed.len(), open));
    expect(&ranges, expected);
    expect(&ranges, &[(152, sealed.len() as u64, "bad_ciphertext")]);
    let lane = reader.lane_agent();
    json!({
        "conversation": hex(CONVERSATION),
        "epoch": EPOCH,
        "secret": lane.is_none().then(|| hex(reader.secret().expose())),
        "lane_agent": lane.map(hex),
        "lane_secret": lane.map(|_| hex(reader.secret().expose())),
        "sid": hex(reader.sid()),
        "sender": hex(AS_USER.to_bytes()),
        "public_key": hex(keys.public().public_key()),
        "signing_public_key": hex(keys.public().signing_public_key()),
        "place": place_json(&place),
        "bytes": hex(sealed),
        "changes": ranges,
    })
}

fn wrap_row() -> Value {
    let (key, rotator, mine) = (cast::epoch_key(), cast::device(), cast::other_device());
    let rotation = Rotation {
        key: &key,
        previous: [0x0c; 16],
        rotator: USER,
        rotator_keys: &rotator,
        time: TIME,
    };
    let recipient = Principal::User(OTHER_USER);
    let to = Recipient {
        principal: recipient,
        keys: mine.public(),
        addressed: false,
    };
    let sealed = wrap::seal(&rotation, &to, &mut StdRng::seed_from_u64(7)).expect("a wrap");
    let open = |bytes: &[u8]| {
        let signer = |_, _| Some(*rotator.public());
        let key = &(&mine).into();
        let opened = wrap::open(bytes, CONVERSATION, EPOCH, recipient, key, signer);
        opened.expect_err("refused")
    };
    let ranges = ranges(&rows(&sealed, 17, open));
    let expected = [
        (0, 1, "unknown_version"),
        (1, 17, "no_epoch_key"),
        (17, 235, "bad_ciphertext"),
    ];
    expect(&ranges, &expected);
    json!({
        "conversation": hex(CONVERSATION),
        "epoch": EPOCH,
        "recipient": hex(recipient.to_bytes()),
        "key_id": hex(mine.key_id()),
        "x25519_private": hex(mine.x25519().expose()),
        "ed25519_seed": hex(mine.ed25519_seed().expose()),
        "bytes": hex(sealed),
        "changes": ranges,
    })
}

#[test]
fn refuse() {
    let header = [
        (0, 1, "unknown_version"),
        (1, 2, "unknown_kind"),
        (2, 3, "malformed"),
        (4, 24, "no_epoch_key"),
        (24, 40, "bad_ciphertext"),
    ];
    let by_secret = [(40, 88, "wrong_key"), (88, 152, "bad_ciphertext")];
    let by_slot = [
        (40, 88, "bad_ciphertext"),
        (88, 104, "no_epoch_key"),
        (104, 152, "bad_ciphertext"),
    ];
    let rows = json!({
        "envelope": envelope_row(&cast::epoch_key(), &[&header[..], &by_secret].concat()),
        "envelope_by_slot": envelope_row(&cast::lane_key(), &[&header[..], &by_slot].concat()),
        "wrap": wrap_row(),
    });
    hold("refuse.json", &rows);
}
