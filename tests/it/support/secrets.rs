//! Row 50 of the attacks, over the whole suite: no node logs a secret that a test has met.
//!
//! Clients remember every token, cookie and code. At the end of each world and of each node that is
//! a process of its own, its log is searched for them, for e-mail addresses and for passwords.

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
/// The fields of answers that hold secrets.
const FIELDS: [&str; 3] = ["access_token", "token", "secret"];

/// Remembers a token, a cookie or a code.
pub fn remember(secret: &str) {
    SECRETS.lock().expect("no panic").insert(secret.to_owned());
}

/// Remembers the secrets of an answer.
pub fn remember_all(data: &Value) {
    for field in FIELDS {
        if let Some(secret) = data[field].as_str() {
            remember(secret);
        }
    }
}

/// The first secret in a log, if there is one, with its line.
pub fn find(lines: &[String]) -> Option<String> {
    let secrets = SECRETS.lock().expect("no panic");
    let is_separator = |letter: char| !letter.is_ascii_alphanumeric() && !"-_.+/".contains(letter);
    let words = |line: &str| {
        line.split(is_separator)
            .map(|word| word.trim_matches('.'))
            .any(|word| secrets.contains(word))
    };
    let bad = |line: &&String| NEVER.iter().any(|part| line.contains(part)) || words(line);
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
    for (line, found) in [
        (
            "{\"token\":\"hsk_0123456789abcdefghijklmnopqrstuvwxyzABCD\"}",
            true,
        ),
        ("code=98765431.", true),
        ("1987654310 rows", false),
        ("mailed ada@example.org", true),
        ("nothing of that kind", false),
    ] {
        assert_eq!(find(&[line.to_owned()]).is_some(), found, "{line}");
    }
}
