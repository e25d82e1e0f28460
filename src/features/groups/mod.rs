//! Groups: who is in them, what they may do there, and the agents' places.
//!
//! Promises: a group never has more members than allowed, however many requests race; who has been removed gets nothing
//! that is committed after; a group with people in it has exactly one owner. A group's id is its conversation's.

pub mod http;
mod rules;
mod store;

pub use self::http::Groups;
