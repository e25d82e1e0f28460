//! The server's side of a WebSocket (RFC 6455, section 5), without extensions.
//!
//! Three things make it cheap to hold many sockets:
//!
//! - An idle socket holds no buffer. All sockets of a thread read through the same buffer.
//! - A body is in memory once, however many sockets send it ([`Socket::queue_shared`]).
//! - A frame that only claims a length takes no memory. The largest message can change while the
//!   socket is open, for example once its client has authenticated.
//!
//! The handshake, deadlines and bounds of the queue are the caller's.
//!
//! Why: ADR 19.

mod decoder;
mod frame;
mod queue;
mod socket;

pub use self::{
    decoder::{Decoder, Fault, Message},
    frame::Kind,
    socket::{Read, Socket},
};
