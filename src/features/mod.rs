//! The features, one folder each. `mod.rs` documents ownership and promises; `http.rs` has wire
//! shapes and handlers. `store.rs` has rows and SQL; `rules.rs` has pure decisions.
//!
//! A feature may call the `mod.rs` of features listed before it, and nothing else of another
//! feature.

pub mod accounts;
pub(crate) mod agents;
pub(crate) mod budgets;
pub(crate) mod conversations;
pub(crate) mod devices;
pub(crate) mod erasure;
pub(crate) mod group_keys;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod messages;
pub mod passkeys;
pub mod relations;
pub(crate) mod streams;
pub(crate) mod typing;

pub(crate) mod health;

/// The order of features: each may call only those before it. A test checks the code against it.
pub const ORDER: &[&str] = &[
    "relations",
    "devices",
    "keys",
    "accounts",
    "passkeys",
    "agents",
    "conversations",
    "groups",
    "group_keys",
    "messages",
    "typing",
    "streams",
    "budgets",
    "erasure",
];
