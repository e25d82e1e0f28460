//! Nothing that arrives causes a panic, and all that is sealed opens.

use blindpipe_e2ee::{
    AgentKey, EpochKey, Principal, PrivateKeys, Secret, View,
    backup::{self, Backup, BackupKey, BackupOwner, Costs},
    content,
    envelope::{self, Draft, Header, Place},
    file, from_base64, wrap,
};
use proptest::{collection::vec, prelude::*};
use rand::{SeedableRng, rngs::StdRng};

const CONVERSATION: [u8; 16] = [7; 16];
const SENDER: Principal = Principal::User([1; 16]);

fn keys() -> PrivateKeys {
    PrivateKeys::new(Secret::new([1; 32]), &Secret::new([2; 32]))
}

fn epoch_key() -> EpochKey {
    EpochKey::new(CONVERSATION, 3, Secret::new([9; 32]))
}

fn place() -> Place {
    Place::Message {
        client_message_id: [5; 16],
        in_reply_to: None,
    }
}

fn sealed(text: &str, readers: &[[u8; 16]], seed: u64) -> Vec<u8> {
    let content = serde_json::json!({ "text": text }).to_string();
    let draft = Draft {
        key: &epoch_key(),
        sender: SENDER,
        sender_keys: &keys(),
        place: &place(),
        readers,
        time: 1,
        view: View::default(),
        content: content.as_bytes(),
    };
    envelope::seal(&draft, &mut StdRng::seed_from_u64(seed)).expect("seals")
}

fn open(bytes: &[u8]) -> blindpipe_e2ee::Result<envelope::Opened> {
    let key = epoch_key();
    let signer = |_| Some(*keys().public());
    envelope::open(
        bytes,
        CONVERSATION,
        SENDER,
        &place(),
        |_, _| Some(&key),
        signer,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..600), text in ".{0,80}") {
        let _ = Header::parse(&bytes);
        let _ = content::parse(&bytes);
        let _ = content::parse(text.as_bytes());
        let _ = from_base64(&text);
        let _ = AgentKey::parse_all(&format!("bpk_{text}"));
        prop_assert!(open(&bytes).is_err());
        prop_assert!(file::open(&bytes, &Secret::new([1; 32]), &[0; 32]).is_err());
        let user = |_, _| Some(*keys().public());
        prop_assert!(wrap::open(&bytes, CONVERSATION, 3, SENDER, &keys().into(), user).is_err());
    }

    #[test]
    fn a_changed_envelope_never_opens(
        text in ".{0,200}",
        at in any::<prop::sample::Index>(),
        flip in 1_u8..,
    ) {
        let mut bytes = sealed(&text, &[[3; 16], [4; 16]], 1);
        prop_assert!(open(&bytes).is_ok());
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(open(&bytes).is_err());
    }

    #[test]
    fn files_of_any_length_open(chunks in 0_usize..3, rest in 0_usize..200, seed in any::<u64>()) {
        let content = vec![1; (chunks * file::CHUNK_BYTES + rest).saturating_sub(100)];
        let made = file::seal(&content, &mut StdRng::seed_from_u64(seed));
        prop_assert_eq!(file::open(&made.bytes, &made.key, &made.sha256), Ok(content));
    }

    #[test]
    fn padding_hides_the_length_and_costs_an_eighth(length in 128_usize..800_000) {
        let padded = content::padded(length, 128);
        prop_assert!(padded >= length && padded <= length + length / 8 + 16);
        prop_assert_eq!(content::padded(padded, 128), padded);
    }
}

#[test]
fn arbitrary_backups_never_panic() {
    let costs = Costs {
        m: 19_456,
        t: 2,
        p: 1,
    };
    let key = BackupKey::derive("a password", [1; 32], costs).expect("good costs");
    let keys = keys();
    let owner = BackupOwner {
        user: [1; 16],
        device_id: "laptop",
        keys: keys.public(),
    };
    let mut rng = StdRng::seed_from_u64(1);
    let made = backup::seal(&key, [1; 16], "laptop", &keys, &[], &mut rng).expect("seals");
    assert!(backup::open(&key, &owner, &made).is_ok());
    for length in 0..made.backup_a.len() {
        let cut = Backup {
            backup_a: made.backup_a[..length].to_vec(),
            backup_b: made.backup_b.clone(),
        };
        assert!(backup::open(&key, &owner, &cut).is_err());
        let mut changed = made.clone();
        changed.backup_b[length] ^= 1;
        assert!(backup::open(&key, &owner, &changed).is_err());
    }
}
