//! The types of ids. A swapped argument can hand an event to another reader, so the compiler must
//! tell a principal from a credential.

use std::collections::BTreeSet;

use super::sources::{root, sources};

/// The files that may name `Uuid`, each with the meaning of its `Uuid`s. The list only becomes shorter: a principal
/// is a `PrincipalId`, a credential a `CredentialId`, and a record has an id of its own kind.
const BARE_IDS: [(&str, &str); 17] = [
    (
        "src/features/push/store/wakes.rs",
        "the slot of a wake: a conversation, an event, or neither",
    ),
    ("src/ids.rs", "the bits of a new id"),
    ("src/random.rs", "the bits of a new id"),
    ("src/jobs/mod.rs", "the input of a mailed code"),
    (
        "src/features/accounts/jobs.rs",
        "the input of a mailed code",
    ),
    (
        "src/features/accounts/rules.rs",
        "the input of a mailed code",
    ),
    (
        "src/features/accounts/store/address.rs",
        "the input of a mailed code",
    ),
    (
        "src/features/accounts/store/codes.rs",
        "the input of a mailed code",
    ),
    ("src/features/blocks/store.rs", "the order of a list"),
    (
        "src/features/messages/batch.rs",
        "a client's idempotency key",
    ),
    (
        "src/features/messages/body.rs",
        "a client's idempotency key",
    ),
    (
        "src/features/messages/store/mod.rs",
        "a client's idempotency key",
    ),
    (
        "src/features/messages/store/statement.rs",
        "a client's idempotency key",
    ),
    (
        "src/features/search/rules.rs",
        "an id of one of five kinds, with its kind",
    ),
    (
        "src/features/search/store.rs",
        "an id of one of five kinds, with its kind",
    ),
    (
        "src/features/tool_calls/store/mod.rs",
        "the key of a call's row",
    ),
    (
        "src/features/tool_calls/store/responses.rs",
        "the key of a call's row",
    ),
];

#[test]
fn a_bare_uuid_names_no_principal_and_no_credential() {
    let names_uuid = |text: &str| {
        let mut words = text.split(|sign: char| !sign.is_alphanumeric() && sign != '_');
        words.any(|word| word == "Uuid")
    };
    let found: BTreeSet<String> = sources(&root().join("src"))
        .into_iter()
        .filter_map(|(file, text)| names_uuid(&text).then_some(file))
        .collect();
    let listed: BTreeSet<String> = BARE_IDS
        .iter()
        .map(|(file, _)| (*file).to_owned())
        .collect();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(
        new.is_empty(),
        "give these ids a type of `crate::ids`: {new:?}"
    );
    let old: Vec<_> = listed.difference(&found).collect();
    assert!(old.is_empty(), "strike these from the list: {old:?}");
}
