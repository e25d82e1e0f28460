//! Keys, wraps, files, backups, safety numbers, ids, contents, the log.

use blindpipe_e2ee::{
    AgentKey, ED25519_SMALL_ORDER, Principal, PrivateKeys, PublicKeys, Secret, X25519_SMALL_ORDER,
    backup::{self, BackupKey, BackupOwner, Costs},
    content, file,
    ids::{Origin, ulid},
    introduce,
    keylog::{self, ListedKey},
    safety, verify_introduction,
    wrap::{self, Recipient, Rotation},
};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    cast::{self, ADDRESSED, AGENT, AS_AGENT, AS_USER, CONVERSATION, EPOCH, MESSAGE, TIME, USER},
    hold,
    support::{array, hex, text, unhex},
};

fn private_json(keys: &PrivateKeys) -> Value {
    json!({
        "x25519_private": hex(keys.x25519().expose()),
        "ed25519_seed": hex(keys.ed25519_seed().expose()),
        "public_key": hex(keys.public().public_key()),
        "signing_public_key": hex(keys.public().signing_public_key()),
        "key_id": hex(keys.key_id()),
    })
}

#[test]
fn keys() {
    let agents: Vec<_> = [[3; 32], [0; 32], [0xff; 32]]
        .into_iter()
        .map(|seed| {
            let key = AgentKey::new(Secret::new(seed));
            assert_eq!(AgentKey::parse(&key.to_text()), Ok(key.clone()));
            let mut json = private_json(&key.keys());
            json["seed"] = hex(seed).into();
            json["string"] = key.to_text().as_str().into();
            json
        })
        .collect();
    let good = cast::agent_key().to_text().to_string();
    let refused = [
        String::new(),
        "bpk_".to_owned(),
        good.replace("bpk_", "bpx_"),
        good.replace("AwMD", "AwMC"),
        good[..51].to_owned(),
        format!("{good}A"),
        format!("{good}=="),
        good.to_uppercase(),
    ];
    for text in &refused {
        assert!(AgentKey::parse(text).is_err(), "{text}");
    }
    let epoch = cast::epoch_key();
    let made = json!({
        "devices": [private_json(&cast::device()), private_json(&cast::other_device())],
        "agents": agents,
        "agent_strings_refused": refused,
        "signing_keys_refused": ED25519_SMALL_ORDER.map(hex),
        "public_keys_refused": X25519_SMALL_ORDER.map(hex),
        "epoch": {
            "conversation": hex(CONVERSATION),
            "epoch": EPOCH,
            "secret": hex([9; 32]),
            "sid": hex(epoch.sid()),
            "lane_everyone": hex(epoch.everyone().expect("held").expose()),
            "addressed_agent": hex(ADDRESSED),
            "lane_addressed": hex(epoch.addressed(ADDRESSED).expect("held").expose()),
        },
    });
    hold("keys.json", &made);
}

#[test]
fn refused_keys_are_refused_with_either_sign() {
    let good = *cast::device().public();
    for sign in [0, 0x80] {
        for mut key in ED25519_SMALL_ORDER {
            key[31] |= sign;
            assert!(PublicKeys::new(*good.public_key(), key).is_err());
        }
        for mut key in X25519_SMALL_ORDER {
            key[31] |= sign;
            assert!(PublicKeys::new(key, *good.signing_public_key()).is_err());
        }
    }
}

#[test]
fn introductions() {
    let (old, new) = (cast::device(), cast::agent_key().keys());
    let case = |owner: Principal, device_id: Option<&str>| {
        let signature = introduce(&old, owner, device_id, new.public()).expect("short");
        let by = old.public();
        let told = verify_introduction(by, owner, device_id, new.public(), &signature);
        assert_eq!(told, Ok(()));
        json!({
            "owner": hex(owner.to_bytes()),
            "device_id": device_id,
            "by": private_json(&old),
            "public_key": hex(new.public().public_key()),
            "signing_public_key": hex(new.public().signing_public_key()),
            "signature": hex(signature),
        })
    };
    hold(
        "introductions.json",
        &json!({"cases": [case(AS_USER, Some("phone")), case(AS_AGENT, None)]}),
    );
}

/// The wraps, with what each says; the ephemeral keys are of a seeded generator.
#[test]
fn wraps() {
    let mut rng = StdRng::seed_from_u64(1);
    let (key, device) = (cast::epoch_key(), cast::device());
    let rotation = Rotation {
        key: &key,
        previous: [0x0c; 16],
        rotator: USER,
        rotator_keys: &device,
        time: TIME,
    };
    let agent = cast::agent_key().keys();
    let other = cast::other_device();
    let to = [
        (Principal::User(cast::OTHER_USER), &other, false),
        (AS_AGENT, &agent, false),
        (Principal::Agent(ADDRESSED), &agent, true),
    ];
    let cases: Vec<_> = to
        .into_iter()
        .map(|(principal, keys, addressed)| {
            let recipient = Recipient {
                principal,
                keys: keys.public(),
                addressed,
            };
            let sealed = wrap::seal(&rotation, &recipient, &mut rng).expect("a wrap");
            let known = |_, _| Some(*device.public());
            let opened = wrap::open(&sealed, CONVERSATION, EPOCH, principal, &keys.into(), known);
            let opened = opened.expect("opens");
            assert_eq!(opened.key.sid(), key.sid());
            json!({
                "recipient": hex(principal.to_bytes()),
                "recipient_keys": private_json(keys),
                "kind": if addressed { 2 } else { 1 },
                "rotator": hex(opened.rotator.to_bytes()),
                "rotator_key": hex(opened.rotator_key),
                "rotator_keys": private_json(&device),
                "previous": hex(opened.previous),
                "time": opened.time,
                "secret": hex(opened.key.secret().expose()),
                "sid": hex(opened.key.sid()),
                "wrap": hex(sealed),
            })
        })
        .collect();
    let made = json!({
        "conversation": hex(CONVERSATION),
        "epoch": EPOCH,
        "not_given": "00",
        "cases": cases,
    });
    hold("wraps.json", &made);
}

#[test]
fn paddings() {
    let lengths = [
        1, 128, 129, 143, 144, 145, 200, 256, 257, 1000, 5000, 65_536, 65_537, 700_000,
    ];
    let rows: Vec<_> = lengths
        .into_iter()
        .map(|length: usize| {
            json!({
                "length": length,
                "padded": content::padded(length, 128),
                "padded_delta": content::padded(length, 256),
            })
        })
        .collect();
    hold("paddings.json", &json!({"cases": rows}));
}

#[test]
fn contents() {
    let deep = |depth: usize| {
        format!(
            "{{\"a\":{}{}}}",
            "[".repeat(depth - 1),
            "]".repeat(depth - 1)
        )
    };
    let text = |list: &[&str]| list.iter().map(hex).collect::<Vec<_>>();
    let mut accepted = text(&[
        "{}",
        " {\"a\" : 1}\r\n\t",
        "{\"a\":1,\"a\":2}",
        "{\"n\":9007199254740991,\"m\":-9007199254740991}",
        "{\"n\":9007199254740991.4}",
        "{\"n\":1e-400,\"m\":-0,\"e\":1.5E+3}",
        "{\"s\":\"\\ud83d\\ude00\",\"z\":\"\\u0000\"}",
        "{\"ß\":\"😀\"}",
    ]);
    accepted.push(hex(deep(64)));
    let mut refused = text(&[
        "",
        "[]",
        "\"text\"",
        "null",
        "{",
        "{}{}",
        "{'a':1}",
        "{\"a\":1,}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":.5}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":1e400}",
        "{\"a\":1e20}",
        "{\"a\":9007199254740992}",
        "{\"a\":9007199254740993}",
        "{\"a\":[-9007199254740992]}",
        "{\"a\":9007199254740991.5}",
        "{\"a\":123456789012345678901234567890}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\\udc00\\ud800\"}",
        "{\"\\ud800\":1}",
        "{\"a\":\"\n\"}",
        "\u{feff}{}",
        "{\u{a0}}",
    ]);
    refused.push(hex(b"{\"a\":\"\xff\"}"));
    refused.push(hex(b"{\"a\":\"\xed\xa0\x80\"}"));
    refused.push(hex(deep(65)));
    refused.push(hex(deep(5_000)));
    for content in &accepted {
        assert!(content::parse(&unhex(content)).is_ok(), "{content}");
    }
    for content in &refused {
        assert!(content::parse(&unhex(content)).is_err(), "{content}");
    }
    hold(
        "contents.json",
        &json!({"accepted": accepted, "refused": refused}),
    );
}

#[test]
fn files() {
    let (key, salt) = (Secret::new([4; 32]), [5; 16]);
    let case = |pattern: &str, length: usize| {
        let content: Vec<_> = pattern.bytes().cycle().take(length).collect();
        let sealed = file::seal_with(&content, &key, salt);
        let sha256 = <sha2::Sha256 as sha2::Digest>::digest(&sealed).into();
        assert_eq!(file::open(&sealed, &key, &sha256), Ok(content));
        json!({
            "key": hex(key.expose()),
            "salt": hex(salt),
            "pattern": pattern,
            "length": length,
            "file_length": sealed.len(),
            "sha256": hex(sha256),
            "file": (length < 1000).then(|| hex(&sealed)),
        })
    };
    let cases = [
        case("z", 0),
        case("z", 1),
        case("blindpipe ", 100),
        case("z", 65_535),
        case("z", 65_536),
        case("z", 65_537),
        case("z", 70_000),
        case("abc", 131_072),
    ];
    hold(
        "files.json",
        &json!({"cases": cases, "refused": refused_files()}),
    );
}

/// Files that were cut, swapped or made by nobody honest, each with its own hash.
fn refused_files() -> Vec<Value> {
    let (key, salt) = (Secret::new([4; 32]), [5; 16]);
    let small = file::seal_with(b"blindpipe", &key, salt);
    let large = file::seal_with(&vec![b'z'; 3 * 65_536], &key, salt);
    let chunk = 65_552;
    let swapped = [
        &large[..20],
        &large[20 + chunk..][..chunk],
        &large[20..][..chunk],
    ]
    .concat();
    let mut altered = small.clone();
    *altered.last_mut().expect("a byte") ^= 1;
    let cases = [
        ("cut in the header", "malformed", small[..19].to_vec()),
        (
            "another magic",
            "unknown_version",
            [b"BPF2", &small[4..]].concat(),
        ),
        ("no chunk", "bad_ciphertext", small[..20].to_vec()),
        ("an altered tag", "bad_ciphertext", altered),
        (
            "cut at a chunk",
            "bad_ciphertext",
            large[..20 + chunk].to_vec(),
        ),
        (
            "swapped chunks",
            "bad_ciphertext",
            [&swapped[..], &large[20 + 2 * chunk..]].concat(),
        ),
        (
            "something after the end",
            "bad_ciphertext",
            [&small[..], &[0]].concat(),
        ),
    ];
    let row = |(name, reason, file): (&str, &str, Vec<u8>)| {
        let sha256 = <sha2::Sha256 as sha2::Digest>::digest(&file).into();
        let refused = file::open(&file, &key, &sha256).expect_err(name);
        assert_eq!(refused.reason(), reason, "{name}");
        // Large ones are described by the ranges of an honest file that they consist of.
        let inline = (file.len() < 1000).then(|| hex(&file));
        json!({"name": name, "reason": reason, "file": inline, "sha256": hex(sha256)})
    };
    cases
        .into_iter()
        .filter(|case| case.2.len() < 1000)
        .map(row)
        .collect()
}

#[test]
fn cut_and_swapped_files_are_refused() {
    let (key, salt) = (Secret::new([4; 32]), [5; 16]);
    let chunk = 65_552;
    let large = file::seal_with(&vec![b'z'; 3 * 65_536], &key, salt);
    let mut swapped = large.clone();
    swapped[20..20 + 2 * chunk].rotate_left(chunk);
    for file in [&large[..20 + chunk], &large[..20 + 2 * chunk], &swapped] {
        let sha256 = <sha2::Sha256 as sha2::Digest>::digest(file).into();
        assert!(file::open(file, &key, &sha256).is_err());
    }
    assert!(file::open(&large, &key, &[0; 32]).is_err());
}

#[test]
fn backups() {
    let device = cast::device();
    let salt = [7; 32];
    let costs = Costs::default();
    let key = BackupKey::derive("pass wo\u{308}rd", salt, costs).expect("good costs");
    let earlier_id = array(&json!({"id": "2b44abc9dbb9b093635c2a139eacd2f8"}), "id");
    let earlier = [(earlier_id, Secret::new([0x11; 32]))];
    let nonces = [[8; 12], [10; 12]];
    let made = backup::seal_with_nonces(&key, USER, "laptop-1", &device, &earlier, nonces);
    let made = made.expect("a backup");
    let owner = BackupOwner {
        user: USER,
        device_id: "laptop-1",
        keys: device.public(),
    };
    let restored = backup::open(&key, &owner, &made).expect("opens");
    assert_eq!(restored.keys.key_id(), device.key_id());
    assert_eq!(restored.earlier, earlier);
    let json = json!({
        "user": hex(USER),
        "device_id": "laptop-1",
        "device": private_json(&device),
        "password": "pass wörd",
        "password_decomposed": "pass wo\u{308}rd",
        "salt": hex(salt),
        "m": costs.m, "t": costs.t, "p": costs.p,
        "kek": hex(key.secret().expose()),
        "earlier": [{"key_id": hex(earlier_id), "x25519_private": hex([0x11; 32])}],
        "nonce_a": hex(nonces[0]),
        "nonce_b": hex(nonces[1]),
        "backup_a": hex(&made.backup_a),
        "backup_b": hex(&made.backup_b),
        "costs_refused": refused_costs(),
    });
    hold("backups.json", &json);
}

fn refused_costs() -> Vec<Value> {
    let costs = [
        (19_455, 3, 1),
        (1_048_577, 3, 1),
        (65_536, 1, 1),
        (65_536, 11, 1),
        (65_536, 3, 0),
        (65_536, 3, 17),
    ];
    let refuse = |(m, t, p)| {
        assert!(BackupKey::derive("x", [0; 32], Costs { m, t, p }).is_err());
        json!({"m": m, "t": t, "p": p})
    };
    costs.into_iter().map(refuse).collect()
}

#[test]
fn safety_numbers() {
    let (device, agent) = (cast::device(), cast::agent_key().keys());
    let sides = [(AS_USER, device.public()), (AS_AGENT, agent.public())];
    let number = safety::number(sides[0], sides[1]);
    assert_eq!(number, safety::number(sides[1], sides[0]));
    let side = |(owner, keys): (Principal, &PublicKeys)| {
        json!({
            "owner": hex(owner.to_bytes()),
            "public_key": hex(keys.public_key()),
            "signing_public_key": hex(keys.signing_public_key()),
            "half": safety::half(owner, keys),
        })
    };
    hold(
        "safety.json",
        &json!({"cases": [{"sides": sides.map(side), "number": number}]}),
    );
}

#[test]
fn reply_ids() {
    let message = Origin::message(CONVERSATION, AS_USER, MESSAGE);
    let event = Origin::event(CONVERSATION);
    let case = |origin: &Origin, source: Value, name: &str| {
        let id = origin.reply(AGENT, name).expect("short");
        json!({
            "source": source,
            "agent": hex(AGENT),
            "name": name,
            "origin": hex(origin.hash()),
            "key": hex(origin.key()),
            "id": hex(id),
            "ulid": ulid(id),
        })
    };
    let from_message = json!({
        "conversation": hex(CONVERSATION),
        "sender": hex(AS_USER.to_bytes()),
        "client_message_id": hex(MESSAGE),
    });
    let from_event = json!({"event": hex(CONVERSATION)});
    let cases = [
        case(&message, from_message.clone(), "0"),
        case(&message, from_message, "deploy"),
        case(&event, from_event, "0"),
    ];
    hold("reply_ids.json", &json!({"cases": cases}));
}

#[test]
fn key_log() {
    let (device, phone) = (cast::device(), cast::agent_key().keys());
    let list = [
        ListedKey {
            device_id: Some("phone"),
            keys: phone.public(),
            schemes: &[],
        },
        ListedKey {
            device_id: Some("laptop-1"),
            keys: device.public(),
            schemes: &["bp1"],
        },
    ];
    let first = keylog::keys_hash([0; 32], &list).expect("short");
    let second = keylog::keys_hash(first, &list[1..]).expect("short");
    let row = |version, before: [u8; 32], hash: [u8; 32], list: &[ListedKey<'_>]| {
        let leaf = keylog::leaf(AS_USER, version, hash);
        let keys: Vec<_> = list
            .iter()
            .map(|key| {
                json!({
                    "device_id": key.device_id,
                    "public_key": hex(key.keys.public_key()),
                    "signing_public_key": hex(key.keys.signing_public_key()),
                    "schemes": key.schemes,
                })
            })
            .collect();
        json!({
            "owner": hex(AS_USER.to_bytes()),
            "list_version": version,
            "before": hex(before),
            "keys": keys,
            "keys_hash": hex(hash),
            "label": hex(keylog::log_label(AS_USER)),
            "leaf": hex(leaf),
            "leaf_hash": hex(keylog::leaf_hash(&leaf)),
            "view": hex(keylog::view(version, &hash).to_bytes()),
        })
    };
    let cases = [
        row(1, [0; 32], first, &list),
        row(2, first, second, &list[1..]),
    ];
    hold("key_log.json", &json!({"cases": cases}));
}

#[test]
fn secrets_are_not_printed() {
    let (device, agent) = (cast::device(), cast::agent_key());
    let key = cast::epoch_key();
    let printed = format!("{device:?} {agent:?} {key:?} {:?}", Secret::new([1; 32]));
    assert!(!printed.contains("[1, 1, 1"), "{printed}");
    assert!(!printed.contains("[9, 9, 9"), "{printed}");
    assert!(!text(&json!({"printed": printed}), "printed").contains("[3, 3, 3"));
}
