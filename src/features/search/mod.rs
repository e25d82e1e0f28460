//! Search over what the server can see: titles and names, and tokens that clients made.
//!
//! Promises: a search finds only what the caller may see, because each statement begins at the
//! caller's own memberships. Its cost follows what the caller may see, not what there is. The
//! content of messages is ciphertext, so words find none; a client's keyed hashes do.
//!
//! Why: ADR 43.

pub(crate) mod http;
mod rules;
mod store;
