//! Row 50 of the attacks, over the whole suite: no node logs a secret that a test has met.
//!
//! Clients remember every token, cookie and code, and the long words of what they send: payloads,
//! ciphertexts, passwords, wrapped keys. At the end of each world and of each node that is a process
//! of its own, its log is searched for them, for e-mail addresses and for passwords.

use std::{
    collections::HashSet,
    io,
    sync::{LazyLock, Mutex, Once},
};

use serde_json::Value;
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

static SECRETS: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Parts of lines that are never logged: the suite's e-mail addresses and passwords.
const NEVER: [&str; 3] = ["@example.org", "correct horse battery", "a wrong password"];
/// The fields that hold secrets, or what only members may read.
const FIELDS: [&str; 14] = [
    "access_token",
    "account_password",
    "arguments",
    "ciphertext",
    "data",
    "encrypted_private_key",
    "new_password",
    "payload",
    "result",
    "search_tokens",
    "secret",
    "token",
    "turnstile_token",
    "wrapped_key",
];
/// Shorter words of a payload may stand in a log by chance.
const MIN_WORD_CHARS: usize = 16;
/// Longer frames and bodies are of tests of sizes. They repeat a letter.
const MAX_SENT_BYTES: usize = 64 * 1024;

/// Remembers a token, a cookie or a code.
pub fn remember(secret: &str) {
    SECRETS.lock().expect("no panic").insert(secret.to_owned());
}

/// Remembers the secrets of an answer.
pub fn remember_all(data: &Value) {
    for field in ["access_token", "token", "secret"] {
        if let Some(secret) = data[field].as_str() {
            remember(secret);
        }
    }
}

/// Remembers the long words in what a client sends, if it is JSON.
pub fn remember_sent(body: &[u8]) {
    if body.len() <= MAX_SENT_BYTES
        && let Ok(sent) = serde_json::from_slice(body)
    {
        remember_frame(&sent);
    }
}

/// Remembers the long words in a frame.
pub fn remember_frame(frame: &Value) {
    let mut found = Vec::new();
    collect(frame, false, &mut found);
    if !found.is_empty() {
        SECRETS.lock().expect("no panic").extend(found);
    }
}

/// Collects the long words below the fields.
fn collect(value: &Value, is_secret: bool, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            collect(value, is_secret || FIELDS.contains(&&**name), found);
        }),
        Value::Array(values) => values
            .iter()
            .for_each(|value| collect(value, is_secret, found)),
        Value::String(text) if is_secret && text.len() <= MAX_SENT_BYTES => {
            let long = words(text).filter(|word| word.len() >= MIN_WORD_CHARS);
            found.extend(long.map(str::to_owned));
        }
        _ => {}
    }
}

/// The words of a line, in which a secret is a single word.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_ascii_alphanumeric() && !"-_.+/".contains(letter))
        .map(|word| word.trim_matches('.'))
}

/// The first secret in a log, if there is one, with its line.
pub fn find(lines: &[String]) -> Option<String> {
    let secrets = SECRETS.lock().expect("no panic");
    let has_secret = |line: &str| words(line).any(|word| secrets.contains(word));
    let bad = |line: &&String| NEVER.iter().any(|part| line.contains(part)) || has_secret(line);
    lines.iter().find(bad).cloned()
}

/// Starts to record what the nodes of this process log, and returns the number of lines so far.
pub fn record() -> usize {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let lines = fmt::layer().json().with_writer(|| Recorder);
        let filter = EnvFilter::new("info,fred=warn,refinery_core=warn");
        tracing_subscriber::registry()
            .with(filter)
            .with(lines)
            .try_init()
            .ok();
    });
    LINES.lock().expect("no panic").len()
}

/// The lines since a number of them.
pub fn lines_since(start: usize) -> Vec<String> {
    LINES.lock().expect("no panic")[start..].to_vec()
}

struct Recorder;

impl io::Write for Recorder {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line).into_owned();
        LINES.lock().expect("no panic").push(text);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_secret_in_a_log_is_found() {
    remember("hsk_0123456789abcdefghijklmnopqrstuvwxyzABCD");
    remember("98765431");
    let sent = r#"{"payload":{"blocks":[{"text":"short, and antidisestablishmentarianism"}]}}"#;
    remember_sent(sent.as_bytes());
    for (line, found) in [
        (
            "{\"token\":\"hsk_0123456789abcdefghijklmnopqrstuvwxyzABCD\"}",
            true,
        ),
        ("code=98765431.", true),
        ("1987654310 rows", false),
        ("mailed ada@example.org", true),
        ("body=antidisestablishmentarianism", true),
        ("nothing of that kind, and short", false),
    ] {
        assert_eq!(find(&[line.to_owned()]).is_some(), found, "{line}");
    }
}
