//! Files and key backups.

use blindpipe_e2ee::{
    PublicKeys, Secret,
    backup::{self, Backup, BackupKey, BackupOwner, Costs},
    file, to_base64,
};
use hkdf::Hkdf;
use serde_json::{Value, json};

use crate::vectors::{
    basics::private_json,
    cast::{self, USER},
    hold,
    support::{array, hex, text},
};

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
    let made = json!({
        "cases": cases,
        "refused": refused_files(),
        "message": file_message(),
        "messages_refused": refused_messages(),
    });
    hold("files.json", &made);
}

/// Files that were cut, swapped or made by nobody honest, each with its own hash.
fn refused_files() -> Vec<Value> {
    let (key, salt) = (Secret::new([4; 32]), [5; 16]);
    let small = file::seal_with(b"blindpipe", &key, salt);
    let large = file::seal_with(&[b'z'; LARGE_BYTES], &key, salt);
    let chunks = large.len() - 17;
    let mut altered = small.clone();
    *altered.last_mut().expect("a byte") ^= 1;
    let cases = [
        ("nothing", "malformed", Vec::new()),
        ("cut in the header", "malformed", small[..19].to_vec()),
        (
            "another magic",
            "unknown_version",
            [b"BPF2", &small[4..]].concat(),
        ),
        (
            "a magic of another kind",
            "unknown_version",
            [b"%PDF", &small[4..]].concat(),
        ),
        (
            "another magic and nothing else",
            "unknown_version",
            b"BPF2".to_vec(),
        ),
        ("no chunk", "bad_ciphertext", small[..20].to_vec()),
        ("an altered tag", "bad_ciphertext", altered),
        (
            "something after the end",
            "bad_ciphertext",
            [&small[..], &[0]].concat(),
        ),
        ("cut at a chunk", "bad_ciphertext", large[..chunks].to_vec()),
        (
            "an empty later chunk",
            "malformed",
            [&large[..chunks], &empty_chunk(&key, salt)].concat(),
        ),
    ];
    let row = |(name, reason, file): (&str, &str, Vec<u8>)| {
        let sha256 = <sha2::Sha256 as sha2::Digest>::digest(&file).into();
        let refused = file::open(&file, &key, &sha256).expect_err(name);
        assert_eq!(refused.reason(), reason, "{name}");
        let mut row = json!({"name": name, "reason": reason, "sha256": hex(sha256)});
        if file.len() < 1000 {
            row["file"] = hex(&file).into();
        } else {
            row["of_length"] = LARGE_BYTES.into();
            row["cut"] = chunks.into();
            row["end"] = hex(&file[chunks..]).into();
        }
        row
    };
    cases.into_iter().map(row).collect()
}

/// One chunk and a byte.
const LARGE_BYTES: usize = file::CHUNK_BYTES + 1;

/// The second chunk of a file, said to be the last, with nothing in it.
fn empty_chunk(key: &Secret, salt: [u8; 16]) -> Vec<u8> {
    let info = b"blindpipe/1/file\0";
    let mut file_key = [0; 32];
    let hkdf = Hkdf::<sha2::Sha256>::new(Some(&salt), key.expose());
    hkdf.expand(info, &mut file_key).expect("short");
    let mut nonce = [0; 12];
    (nonce[10], nonce[11]) = (1, 1);
    crate::vectors::craft::gcm(&file_key, &nonce, &[], &[])
}

fn file_message() -> Value {
    json!({
        "type": "file",
        "file_id": "0192f0c1-a2b3-7c4d-8e5f-60718293a4b5",
        "object_key": "files/0192f0c1/blob-1_2.bin",
        "name": "plan.pdf",
        "content_type": "application/pdf",
        "size": 9,
        "sha256": hex([6; 32]),
        "key": to_base64(&[4; 32]),
    })
}

/// Messages that lead nowhere, or to something other than an object.
fn refused_messages() -> Vec<Value> {
    let odd = |field: &str, value: Value| {
        let mut message = file_message();
        message[field] = value;
        message
    };
    let mut messages = Vec::new();
    for field in ["object_key", "sha256", "key"] {
        let mut without = file_message();
        without.as_object_mut().expect("an object").remove(field);
        let others = [Value::Null, json!(7), json!("")].map(|value| odd(field, value));
        messages.push(without);
        messages.extend(others);
    }
    for path in [
        "../me",
        "a/../../me",
        "a?b",
        "a#b",
        "a%2e",
        "a\\b",
        "a b",
        "a\n",
        "ä",
    ] {
        messages.push(odd("object_key", path.into()));
    }
    let hash = hex([6; 32]);
    let hashes = [&hash[2..], &format!("{hash}00"), &hash.replace('6', "g")];
    messages.extend(hashes.map(|hash| odd("sha256", hash.into())));
    let key = to_base64(&[4; 32]);
    let keys = [
        to_base64(&[4; 31]),
        key.replace('=', ""),
        key.replace("Q=", "R="),
    ];
    messages.extend(keys.map(|key| odd("key", key.into())));
    messages
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
        "costs_accepted": accepted_costs(),
        "costs_refused": refused_costs(),
        "refused": refused_backups(&made),
    });
    hold("backups.json", &json);
}

/// Backups that do not open, each with what is other than in the honest one.
fn refused_backups(honest: &Backup) -> Vec<Value> {
    let Backup { backup_a, backup_b } = honest;
    let version = |half: &[u8]| [&[2], &half[1..]].concat();
    let mut altered = backup_b.clone();
    *altered.last_mut().expect("a byte") ^= 1;
    let halves = [
        ("no first half", Vec::new(), backup_b.clone()),
        ("no second half", backup_a.clone(), Vec::new()),
        (
            "cut in the nonce",
            backup_a[..12].to_vec(),
            backup_b.clone(),
        ),
        (
            "cut before the tag",
            backup_a.clone(),
            backup_b[..28].to_vec(),
        ),
        (
            "cut at the end",
            backup_a[..backup_a.len() - 1].to_vec(),
            backup_b.clone(),
        ),
        ("another version", version(backup_a), backup_b.clone()),
        (
            "another version of the second half",
            backup_a.clone(),
            version(backup_b),
        ),
        ("an altered tag", backup_a.clone(), altered),
        (
            "halves in each other's place",
            backup_b.clone(),
            backup_a.clone(),
        ),
    ];
    let same = json!({});
    let mut rows: Vec<_> = halves
        .into_iter()
        .map(|(name, backup_a, backup_b)| {
            refused_backup(name, Backup { backup_a, backup_b }, &same)
        })
        .collect();
    let others = [
        ("another password", json!({"password": "pass word"})),
        ("another user", json!({"user": hex(cast::OTHER_USER)})),
        ("another device", json!({"device_id": "laptop-2"})),
        (
            "the keys of another device",
            json!({"device": private_json(&cast::other_device())}),
        ),
    ];
    rows.extend(others.map(|(name, other)| refused_backup(name, honest.clone(), &other)));
    rows
}

fn refused_backup(name: &str, backup: Backup, other: &Value) -> Value {
    let field = |name: &str, usual: Value| {
        let value = other.get(name).cloned();
        value.unwrap_or(usual)
    };
    let mut row = json!({
        "name": name,
        "reason": "wrong_key",
        "user": field("user", hex(USER).into()),
        "device_id": field("device_id", "laptop-1".into()),
        "device": field("device", private_json(&cast::device())),
        "password": field("password", "pass wörd".into()),
    });
    let costs = Costs::default();
    let key = BackupKey::derive(&text(&row, "password"), [7; 32], costs).expect("good costs");
    let keys = PublicKeys::new(
        array(&row["device"], "public_key"),
        array(&row["device"], "signing_public_key"),
    );
    let owner = BackupOwner {
        user: array(&row, "user"),
        device_id: &text(&row, "device_id"),
        keys: &keys.expect("keys"),
    };
    let refused = backup::open(&key, &owner, &backup).expect_err(name);
    assert_eq!(refused.reason(), "wrong_key", "{name}");
    row["backup_a"] = hex(backup.backup_a).into();
    row["backup_b"] = hex(backup.backup_b).into();
    row
}

/// The corners of what is computed, which takes up to a gigabyte: they are only checked.
fn accepted_costs() -> Vec<Value> {
    let costs = [(19_456, 2, 1), (1_048_576, 10, 16)];
    let accept = |(m, t, p)| {
        assert!(Costs { m, t, p }.check().is_ok());
        json!({"m": m, "t": t, "p": p})
    };
    costs.into_iter().map(accept).collect()
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
