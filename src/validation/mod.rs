//! What a value from outside must satisfy before a room works with it: text, ids, addresses, credentials seen earlier.

mod device_id;
mod email;
mod reverify;
mod text;

pub use self::{device_id::DeviceId, email::Email, reverify::Reverify, text::Text};
