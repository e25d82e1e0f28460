//! Names of types: a noun says what a thing is, and a bare past participle only what was done to it.

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
