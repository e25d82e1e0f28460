//! The protocol of blindpipe as types: the client's requests, the server's answers, and their
//! common names.
//!
//! The crate does no I/O. The server, its tests, the load generator and Rust clients share it.
//! OpenAPI and AsyncAPI documents are made of its schemas (feature `schema`).
//!
//! - Words of one meaning: [`ids`], [`time`], [`cursor`], [`text`], [`errors`], [`limits`],
//!   [`close`], [`revocation`].
//! - REST, a module per noun: [`accounts`], [`devices`], [`passkeys`], [`keys`], [`group_keys`],
//!   [`agents`], [`conversations`], [`messages`], [`groups`], [`relations`], [`grants`],
//!   [`tool_calls`], [`approvals`], [`access_log`], [`files`], [`shares`], [`sessions`], [`inbox`],
//!   [`service`], [`webhooks`], [`push`];
//!   [`envelope`] wraps them.
//! - Real time: [`events`] (durable), [`typing`] and [`streams`] (ephemeral), [`frames`] (all of
//!   `/ws`).
//!
//! Absent optional fields of requests are omitted. A field of a response is present unless its
//! documentation says otherwise; null means "none".
#![deny(missing_docs)]

#[macro_use]
mod macros;

pub mod access_log;
pub mod accounts;
pub mod agents;
pub mod approvals;
pub mod bad_text;
pub mod blocks;
pub mod close;
pub mod conversations;
pub mod cursor;
pub mod devices;
pub mod envelope;
pub mod errors;
pub mod events;
pub mod files;
pub mod frames;
pub mod grants;
pub mod group_keys;
pub mod groups;
pub mod ids;
pub mod inbox;
pub mod keys;
pub mod limits;
pub mod messages;
pub mod passkeys;
pub mod push;
pub mod raw;
pub mod relations;
pub mod revocation;
pub mod search;
pub mod service;
pub mod sessions;
pub mod shares;
pub mod stops;
pub mod streams;
pub mod text;
pub mod time;
pub mod tool_calls;
pub mod typing;
pub mod webhooks;
