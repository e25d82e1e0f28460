//! Clients that encrypt: what they keep to themselves is marked.

use aho_corasick::AhoCorasick;
use argon2::Argon2;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe::clock::iso;
use serde_json::{Value, json};

use super::{
    marks::{Key, Marks, sealed},
    places::Haystack,
};
use crate::support::{Agent, Answer, Caller, User, World, ulid};

/// Asserts a success.
#[track_caller]
pub fn ok(answer: Answer) -> Answer {
    assert!(answer.status < 300, "{} {}", answer.status, answer.body);
    answer
}

/// A field of an answer's data.
#[track_caller]
pub fn field(answer: &Answer, name: &str) -> String {
    let value = answer.data()[name].as_str();
    value
        .unwrap_or_else(|| panic!("{name}: {}", answer.body))
        .to_owned()
}

/// The newest code in the mails to an address. The mails stay, because they are searched later.
pub async fn mailed_code(world: &World, email: &str, known: &mut Vec<String>) -> String {
    for _ in 0..400 {
        for (name, text) in super::places::files("mail", &world.mail_dir) {
            let text = String::from_utf8_lossy(&text).into_owned();
            let is_code = |line: &&str| line.len() == 8 && line.bytes().all(|b| b.is_ascii_digit());
            let code = text.lines().map(str::trim).find(is_code).map(str::to_owned);
            let Some(code) = code.filter(|_| text.contains(email) && !known.contains(&name)) else {
                continue;
            };
            known.push(name);
            return code;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("no mail for {email}");
}

/// A person with a password, a protection password and keys.
pub struct Person {
    pub user: User,
    pub password: String,
    /// The names of the mails whose code was used.
    pub mails: Vec<String>,
    /// The pair that signs decisions, and the id of the device's keys.
    pub signing: Option<(Ed25519KeyPair, String)>,
}

impl Person {
    /// Registers, makes keys and stores their encrypted backup.
    pub async fn register(
        world: &std::sync::Arc<World>,
        base: &str,
        name: &str,
        marks: &Marks,
    ) -> Self {
        let caller = Caller::to(world, base);
        let email = format!("{name}-{}@example.org", ulid().to_string().to_lowercase());
        let code = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
        ok(caller.post("/auth/send-code", code).await);
        let mut mails = Vec::new();
        let code = mailed_code(world, &email, &mut mails).await;
        let password = marks.text("an account password");
        let mut body = User::registration(&email, name, &code);
        body["account_password"] = json!(password);
        let answer = ok(caller.post("/auth/register", body).await);
        let user = User::signed_in(caller, email, &answer);
        let mut person = Person {
            user,
            password,
            mails,
            signing: None,
        };
        person.back_up(marks).await;
        person
    }

    /// Makes keys, encrypts them under the protection password, and stores the backup.
    async fn back_up(&mut self, marks: &Marks) {
        let protection = marks.text("a protection password");
        let salt: [u8; 32] = rand::random();
        let mut key_encryption_key = [0; 32];
        Argon2::default()
            .hash_password_into(protection.as_bytes(), &salt, &mut key_encryption_key)
            .expect("a key");
        marks.remember("a key-encryption key", &key_encryption_key);
        let [exchange, signing] =
            ["a private X25519 key", "a private Ed25519 key"].map(|what| marks.key(what));
        let public = Ed25519KeyPair::from_seed_unchecked(&signing).expect("a seed");
        let backup = json!({
            "device_id": self.user.device_id,
            // Any 32 bytes are a public key of X25519.
            "public_key": BASE64.encode(rand::random::<[u8; 32]>()),
            "signing_public_key": BASE64.encode(public.public_key()),
            "backup_a": sealed(&key_encryption_key, &exchange),
            "backup_b": sealed(&key_encryption_key, &signing),
            "argon2_salt": BASE64.encode(salt),
            "argon2_params": { "m": 19456, "t": 2, "p": 1 },
        });
        let kept = ok(self.user.post("/keys/backup", backup).await);
        self.signing = Some((public, field(&kept, "key_id")));
    }
}

/// The registration of an agent's new keys, whose private halves are marked.
pub async fn register_agent_keys(world: &World, agent: &Agent, marks: &Marks) -> String {
    let seed = marks.key("an agent's private Ed25519 key");
    marks.key("an agent's private X25519 key");
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("a seed");
    let [public, signing] = [
        BASE64.encode(rand::random::<[u8; 32]>()),
        BASE64.encode(pair.public_key()),
    ];
    let timestamp = iso(world.clock.now());
    let text = format!("keys-register|{}|{public}|{signing}|{timestamp}", agent.id);
    let body = json!({
        "public_key": public, "signing_public_key": signing, "timestamp": timestamp,
        "signature": BASE64.encode(pair.sign(text.as_bytes())),
    });
    let path = format!("/agents/{}/keys/register", agent.id);
    field(&ok(agent.post(path, body).await), "key_id")
}

/// The payload of an encrypted message.
pub fn payload(key: &Key, plain: &str) -> Value {
    json!({ "type": "encrypted", "ciphertext": sealed(key, plain.as_bytes()) })
}

/// The first mark in some places, with both.
pub fn find(places: &[Haystack], marks: &Marks) -> Option<(String, String)> {
    let (purposes, texts): (Vec<String>, Vec<Vec<u8>>) = marks.spellings().into_iter().unzip();
    let searcher = AhoCorasick::new(&texts).expect("a searcher");
    places.iter().find_map(|(place, bytes)| {
        let found = searcher.find(bytes)?;
        Some((place.clone(), purposes[found.pattern().as_usize()].clone()))
    })
}
