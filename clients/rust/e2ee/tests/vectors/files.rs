//! Files and key backups.

use blindpipe_e2ee::{
    Secret,
    backup::{self, BackupKey, BackupOwner, Costs},
    file,
};
use serde_json::{Value, json};

use crate::{
    basics::private_json,
    cast::{self, USER},
    hold,
    support::{array, hex},
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
