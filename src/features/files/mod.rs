//! Files: uploads in three steps, and the reading of objects.
//!
//! Promises: a confirmed file has its bytes, durably, with the length and the hash that its
//! uploader announced; they never change. Only members read it. Of requests that race for an upload
//! a single one wins. Bytes that nobody confirms within 24 hours go. A signed address dies with the
//! credential that asked for it.

pub(crate) mod http;
mod rules;
mod store;

pub use self::store::{abandon, expire};
