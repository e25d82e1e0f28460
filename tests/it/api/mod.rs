//! Each noun of the interface: its answers, their recipients, and its refusals.

mod accounts;
mod agents;
mod agents_attacks;
mod agents_keys;
mod agents_manifest;
mod agents_states;
mod agents_tokens;
mod announcements;
mod blocks;
mod conversations;
mod devices;
mod erasure;
mod group_keys;
mod groups;
mod keys;
mod load_accounts;
mod messages;
pub mod ownership;
mod public_keys;
mod published;
mod read_markers;
mod relations;
mod search;
mod visibility;
mod web_app;
