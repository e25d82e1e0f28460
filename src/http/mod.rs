//! The HTTP edge of a node, from the connection to the answer.
//!
//! A request passes the listener and TLS ([`listener`]), its id and log line ([`trace`]), its
//! client ([`client`]), and then the route.
//!
//! Why: ADR 26.

pub(crate) mod answer;
mod answers;
pub(crate) mod body;
pub(crate) mod client;
pub mod connections;
mod idle;
pub(crate) mod json;
pub mod listener;
pub(crate) mod paced;
pub(crate) mod page;
pub mod proxy_protocol;
pub(crate) mod trace;
mod unread;

pub(crate) use self::{
    answer::{Created, Data, List},
    answers::{RoomForPage, paced},
    body::{Json, JsonOrNothing, Path, Query},
    page::Page,
};
