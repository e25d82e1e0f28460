//! What a principal has left of its budgets.
//!
//! Promises: what is shown is what the next call would be decided by, and looking costs no budget but the one of looking.

pub(crate) mod http;
mod store;
