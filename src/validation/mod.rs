//! Checks of values from outside: texts, addresses.

mod email;
mod field;
mod text;

pub use blindpipe_protocol::text::DeviceId;

pub use self::{email::Email, field::parse_field, text::Text};
