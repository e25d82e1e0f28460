//! The door of a node: how a request comes in and an answer goes out.
//!
//! In order: accept and TLS ([`listener`]), request id and log line ([`trace`]), who calls and over what
//! ([`client`]), then the route.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod client;
mod idle;
pub(crate) mod json;
pub mod listener;
pub(crate) mod page;
pub(crate) mod trace;
mod unread;

pub(crate) use self::{
    answer::{Created, Data, List},
    body::{Json, JsonOrNothing, Path, Query},
    page::Page,
};
