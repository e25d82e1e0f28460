//! Names: a noun says what a thing is, and a bare past participle only what was done to it. Words that
//! were replaced stay away.

use std::collections::BTreeSet;

use super::sources::{root, sources};

/// Participles without `-ed`.
const IRREGULAR: [&str; 24] = [
    "Begun", "Bound", "Built", "Drawn", "Found", "Given", "Gone", "Heard", "Held", "Hidden",
    "Kept", "Known", "Left", "Lost", "Met", "Seen", "Sent", "Shown", "Swept", "Taken", "Told",
    "Woken", "Written", "Wrapped",
];
/// Participles that are a name of the field, and whose.
const FIELD_NAMES: [(&str, &str); 1] = [("Created", "the answer 201 of HTTP")];

/// Whether a name is one word, and a past participle.
fn is_bare_participle(name: &str) -> bool {
    let is_one_word = name
        .chars()
        .skip(1)
        .all(|letter| letter.is_ascii_lowercase());
    // `Seed`, `Feed` and `Need` are nouns.
    is_one_word && (name.ends_with("ed") && !name.ends_with("eed") || IRREGULAR.contains(&name))
}

/// The name of the type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").unwrap_or(line);
    let line = match line.strip_prefix('(') {
        Some(rest) => rest.split_once(')')?.1,
        None => line,
    };
    let (kind, rest) = line.trim_start().split_once(' ')?;
    let end = |sign: char| !sign.is_alphanumeric() && sign != '_';
    ["struct", "enum", "type"]
        .contains(&kind)
        .then(|| rest.split(end).next().unwrap_or_default())
}

#[test]
fn no_type_is_a_bare_past_participle() {
    let mut found = Vec::new();
    for (file, text) in sources(&root().join("src")) {
        for name in text.lines().filter_map(declared) {
            let is_of_field = FIELD_NAMES.iter().any(|(known, _)| *known == name);
            if is_bare_participle(name) && !is_of_field {
                found.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(found.is_empty(), "name the thing: {found:?}");
}

#[test]
fn participles_are_told_from_nouns() {
    for line in [
        "struct Opened {",
        "pub(super) enum Held<'a> {",
        "pub type Judged = X;",
    ] {
        assert!(declared(line).is_some_and(is_bare_participle), "{line}");
    }
    for line in [
        "pub struct OpenedShare {",
        "enum Need {",
        "let Stored = x;",
        "// struct Told",
    ] {
        assert!(!declared(line).is_some_and(is_bare_participle), "{line}");
    }
}

/// Words that a pass over the names has replaced: (word, the field's word, files below `src` that
/// keep it). Names of SQL, the log, the metrics and the wire are strings, so they are not held to
/// this.
const REPLACED: &[(&str, &str, &[&str])] = &[
    ("Announcement", "RevocationNotice", &[]),
    ("BeatObserver", "HeartbeatObserver", &[]),
    ("ChargedQuotas", "ChargedLimits", &[]),
    ("FinishedSend", "FinishedCommand", &[]),
    ("Links", "SignedUrls, ReconnectWatch, Networking", &[]),
    ("LossGuard", "PublishGuard", &[]),
    ("Losses", "UnpublishedHints", &[]),
    (
        "MAX_SILENCE",
        "MAX_CONSENT",
        &["delivery/backplane/worker.rs"],
    ),
    ("Most", "PageLimit", &[]),
    ("News", "LogChanges", &["features/webhooks"]),
    ("Notice", "EphemeralFrame", &[]),
    ("Notices", "EphemeralFrames", &[]),
    (
        "Place",
        "Permit, Membership, LogPosition, JsonNode, SearchCursor",
        &[
            "features/conversations",
            "features/groups/store.rs",
            "features/webhooks",
        ],
    ),
    ("Places", "Permits, Routes", &[]),
    ("Queue", "Mutex", &["features/webhooks"]),
    ("QuotaStatus", "LimitStatus", &[]),
    ("Rest", "UnreadBody", &[]),
    ("SILENT_WINDOW", "CONSENT_WINDOW", &[]),
    ("Sending", "CommandRunner", &[]),
    ("Sends", "CommandQueue", &[]),
    ("Speaker", "FrameSender", &[]),
    ("Standing", "Membership", &["features/webhooks"]),
    ("StateSeal", "StateMac", &[]),
    ("TAIL", "LAST_SEQUENCE", &[]),
    ("Thing", "ShareTarget", &[]),
    ("UploadPlace", "UploadPermit", &[]),
    ("UploadPlaces", "UploadPermits", &[]),
    ("Way", "MailTransport", &[]),
    (
        "Which",
        "ConversationFilter",
        &["features/conversations/store"],
    ),
    ("beat_at", "heartbeat_at", &[]),
    (
        "announce",
        "broadcast, publish_state",
        &["features/webhooks"],
    ),
    ("dead_credentials", "revoked_credentials", &[]),
    ("demand_round", "request_full_scan", &[]),
    ("divert", "move_contended", &[]),
    ("doubt", "mark_unconfirmed, mark_unhealthy", &[]),
    ("doubted", "unconfirmed_notify", &[]),
    ("doubtful", "unconfirmed", &[]),
    ("end_dead", "end_revoked", &[]),
    ("end_silence", "revoke_consent", &[]),
    ("end_stolen", "end_reused", &[]),
    ("excuse", "exclude", &[]),
    ("give_back", "release", &[]),
    ("go_on", "resume", &["features/webhooks"]),
    ("greet", "ping", &[]),
    ("happen", "notify_lost", &[]),
    ("hasten", "expedite", &["features/webhooks"]),
    ("is_blind", "is_stale", &[]),
    ("let_in", "admit", &[]),
    ("living", "live_nodes", &[]),
    ("note_any", "note_unknown", &[]),
    ("quiet_db", "background_db", &[]),
    ("recognise", "authenticate", &[]),
    ("send_tails", "send_last_sequences", &[]),
    ("suspect", "request_log_read", &[]),
    ("suspected", "log_read_requested", &[]),
    ("tail", "message, last sequence", &["events.rs"]),
    ("tails", "last_sends", &[]),
    ("take_demand", "take_full_scan_request", &[]),
    ("tell", "publish, emit, notify, observe", &[]),
    ("told", "published, recipients", &[]),
];

/// The identifiers of a source: its words outside of comments and strings.
fn identifiers(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let skipped = match first {
            '/' if rest.starts_with("//") => rest.find('\n'),
            '"' => string_end(&rest[1..]).map(|end| end + 2),
            'r' if rest.starts_with("r#\"") => rest.find("\"#").map(|end| end + 2),
            // A quote as a character begins no string.
            '\'' if rest.starts_with("'\"'") => Some(3),
            _ if word != Some(0) => {
                let end = word.unwrap_or(rest.len());
                found.insert(&rest[..end]);
                Some(end)
            }
            _ => Some(first.len_utf8()),
        };
        rest = &rest[skipped.unwrap_or(rest.len())..];
    }
    found
}

/// The end of a string whose opening quote has been read.
fn string_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.find(|c: char| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })
}

#[test]
fn a_replaced_word_does_not_come_back() {
    let mut found = Vec::new();
    let mut kept = BTreeSet::new();
    for (file, text) in sources(&root().join("src")) {
        let identifiers = identifiers(&text);
        for &(word, better, keepers) in REPLACED {
            let keeper = keepers
                .iter()
                .find(|keeper| file.starts_with(&format!("src/{keeper}")));
            match keeper {
                _ if !identifiers.contains(word) => {}
                Some(keeper) => drop(kept.insert((word, *keeper))),
                None => found.push(format!("{file}: `{word}`, better {better}")),
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    let keepers = REPLACED
        .iter()
        .flat_map(|(word, _, keepers)| keepers.iter().map(|keeper| (*word, *keeper)));
    let idle: Vec<_> = keepers.filter(|row| !kept.contains(row)).collect();
    assert!(idle.is_empty(), "no longer kept: {idle:?}");
}

#[test]
fn words_in_comments_and_strings_are_no_identifiers() {
    let source = r##"
        // tell
        fn send(&self) { self.log("tell \" told", '"', r#"give "it" back"#); } // told
    "##;
    let found = Vec::from_iter(identifiers(source));
    assert_eq!(found, ["fn", "log", "self", "send"]);
}
