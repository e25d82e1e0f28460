//! The remaining calls of each of a principal's limits.
//!
//! Promises: the answer matches the decision on the next call. A look charges only its own limit.

pub(crate) mod http;
mod store;
