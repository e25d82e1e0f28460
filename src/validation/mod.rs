//! What a value from outside must satisfy before a room works with it: text, ids, addresses, credentials seen earlier.

mod email;
mod reverify;
mod text;

pub use blindpipe_protocol::text::DeviceId;

pub use self::{email::Email, reverify::Reverify, text::Text};
