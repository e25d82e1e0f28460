//! Everything through the public interface, against real Postgres and Redis, mostly on two nodes.

mod cluster;
mod limits;
mod tokens;
mod windows;

mod accounts;
mod agents;
mod agents_attacks;
mod agents_keys;
mod agents_manifest;
mod agents_states;
mod agents_tokens;
mod attacks_auth;
mod attacks_jwt;
mod attacks_passwords;
mod attacks_tokens;
mod browser;
mod catalogues;
mod conformance;
mod conversations;
mod devices;
mod faults;
mod garbage;
mod gateway;
mod group_keys;
mod groups;
mod history;
mod house;
mod keys;
mod mail;
mod meanwhile;
mod messages;
mod operations;
mod passkeys;
mod relations;
mod resume;
mod sessions;
mod slots;
mod streaming;
mod support;
mod turnstile;

mod attacks_auth;
mod attacks_jwt;
mod attacks_passwords;
mod attacks_tokens;
