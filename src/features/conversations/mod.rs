//! Conversations, their members, and the relations that let agents be in them.
//!
//! Promises: two principals have at most one conversation of their own, however many requests race to open it; only a
//! user opens a relation with an agent.

pub mod http;
mod store;
