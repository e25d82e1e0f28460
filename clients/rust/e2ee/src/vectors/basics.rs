//! Keys, wraps, contents, safety numbers, ids, the log.

use blindpipe_e2ee::{
    AgentKey, ED25519_SMALL_ORDER, EpochKey, Principal, PrivateKeys, PublicKeys, Secret,
    X25519_SMALL_ORDER, content,
    ids::{Origin, ulid},
    introduce,
    keylog::{self, ListedKey},
    safety, search, verify_introduction,
    wrap::{self, Recipient, Rotation},
};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::vectors::{
    cast::{self, ADDRESSED, AGENT, AS_AGENT, AS_USER, CONVERSATION, EPOCH, MESSAGE, TIME, USER},
    hold,
    support::{hex, text, unhex},
};

pub fn private_json(keys: &PrivateKeys) -> Value {
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
fn safety_numbers() {
    let (device, agent) = (cast::device(), cast::agent_key().keys());
    let other = cast::other_device();
    let one = (AS_USER, vec![*device.public()]);
    let two = (AS_USER, vec![*other.public(), *device.public()]);
    let agent = (AS_AGENT, vec![*agent.public()]);
    let cases = [[one, agent.clone()], [two, agent]].map(|sides| {
        let [one, other] = sides.each_ref().map(|(owner, keys)| (*owner, &keys[..]));
        let number = safety::number(one, other);
        assert_eq!(number, safety::number(other, one));
        json!({"sides": sides.map(side), "number": number})
    });
    hold("safety.json", &json!({ "cases": cases }));
}

fn side((owner, keys): (Principal, Vec<PublicKeys>)) -> Value {
    let pair = |keys: &PublicKeys| {
        json!({
            "public_key": hex(keys.public_key()),
            "signing_public_key": hex(keys.signing_public_key()),
        })
    };
    let half = safety::half(owner, &keys);
    let reversed: Vec<_> = keys.iter().rev().copied().collect();
    assert_eq!(safety::half(owner, &reversed), half);
    let twice = [keys.clone(), keys.clone()].concat();
    assert_eq!(safety::half(owner, &twice), half);
    json!({
        "owner": hex(owner.to_bytes()),
        "keys": keys.iter().map(pair).collect::<Vec<_>>(),
        "half": half,
    })
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
fn search_tokens() {
    let key = EpochKey::new(CONVERSATION, 7, Secret::new([9; 32]));
    let next = EpochKey::new(CONVERSATION, 8, Secret::new([9; 32]));
    let case = |text: &str| {
        let words = search::words(text);
        let made = |key| search::tokens(key, &words).expect("a secret");
        json!({"text": text, "words": words, "tokens": made(&key), "next_tokens": made(&next)})
    };
    let cases = [
        "Deploy the API today, the API!",
        "Straße STRASSE stra\u{df}e",
        "\u{3a3}\u{399}\u{3a3}\u{3a5}\u{3a6}\u{39f}\u{3a3} \u{3c3}\u{3b9}\u{3c3}\u{3c5}\u{3c6}\u{3bf}\u{3c2}",
        "\u{130}stanbul I\u{307}stanbul \u{131}stanbul",
        "caf\u{e9} cafe\u{301} CAF\u{c9}",
        "\u{fb01}le \u{ff26}\u{ff29}\u{ff2c}\u{ff25} \u{2460}",
        "it's e-mail a_b 3.14 v1.4.2",
        "\u{6771}\u{4eac}\u{90fd}\u{306b}\u{4f4f}\u{3080} Tokyo\u{6771}",
        "\u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35}",
        "\u{d55c}\u{ad6d}\u{c5b4} \u{1112}\u{1161}\u{11ab}",
        "\u{915}\u{94d}\u{937} \u{643}\u{650}\u{62a}\u{627}\u{628}",
        "\u{1f44d} \u{2014} ...",
        "",
    ]
    .map(case);
    let place = json!({"conversation": hex(CONVERSATION), "epoch": 7, "secret": hex([9; 32])});
    hold("search.json", &json!({"place": place, "cases": cases}));
    let lane = EpochKey::lane(CONVERSATION, 7, AGENT, Secret::new([9; 32]), key.sid());
    assert_eq!(search::tokens(&lane, &search::words("word")), None);
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
