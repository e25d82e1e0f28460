//! The features, one folder each. `mod.rs` documents ownership and promises; `http.rs` has wire
//! shapes and handlers. `store.rs` has rows and SQL; `rules.rs` has pure decisions.
//!
//! A feature may use the `mod.rs` of the features that stand before it on the [map](crate), and
//! nothing else of them.

pub mod access_log;
pub mod accounts;
pub(crate) mod agents;
pub mod announcements;
pub mod approvals;
pub(crate) mod blocks;
pub(crate) mod budgets;
pub(crate) mod conversations;
pub(crate) mod devices;
pub(crate) mod erasure;
pub mod files;
pub(crate) mod grants;
pub(crate) mod group_keys;
pub(crate) mod groups;
pub mod keys;
pub(crate) mod messages;
pub mod passkeys;
pub mod push;
pub mod relations;
pub mod retention;
pub(crate) mod revocations;
pub(crate) mod search;
pub(crate) mod sessions;
pub(crate) mod shares;
pub(crate) mod stops;
pub(crate) mod streams;
pub mod tool_calls;
pub(crate) mod typing;
pub mod webhooks;

pub(crate) mod health;
pub(crate) mod published;
pub(crate) mod web_app;
