//! The door of a node: how a request comes in and an answer goes out.
//!
//! In order: accept and TLS ([`listener`]), request id and log line ([`trace`]), who calls and over what
//! ([`client`]), then the route.

pub mod answer;
pub mod body;
pub mod client;
mod idle;
pub mod json;
pub mod listener;
pub mod page;
pub mod trace;
mod unread;

pub use self::{
    answer::{Created, Data, List},
    body::{Json, JsonOrNothing, Path, Query},
    page::Page,
};
