//! Groups: their members, roles and agent instances.
//!
//! Promises: a group never has more members than allowed, however many requests race. A removed
//! member gets nothing that is committed after the removal. A group with users in it has exactly
//! one owner. A group's id is its conversation's.

pub(crate) mod http;
mod rules;
mod store;

pub(crate) use self::store::remove_instance;
