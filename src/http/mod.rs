//! The HTTP edge of a node, from the connection to the answer.
//!
//! A request passes the listener and TLS ([`listener`]), its id and log line ([`trace`]), its
//! client ([`client`]), and then the route.
//!
//! Why: ADR 26.

pub(crate) mod body;
pub(crate) mod client;
pub mod connections;
pub(crate) mod envelope;
mod idle;
pub(crate) mod json;
pub mod listener;
pub(crate) mod paced;
pub(crate) mod page;
pub mod proxy_protocol;
pub(crate) mod trace;
mod unread;
mod write_pace;

pub(crate) use self::{
    body::{Json, JsonOrNothing, Path, Query},
    envelope::{Created, Data, List},
    page::Page,
    write_pace::{RoomForPage, paced},
};
