//! Checks of values from outside: text, ids, addresses, and credentials that were verified earlier.

mod email;
mod reverify;
mod text;

pub use blindpipe_protocol::text::DeviceId;

pub use self::{
    email::Email,
    reverify::Reverify,
    text::{Name, Text},
};
