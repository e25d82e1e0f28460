//! Shares: links that show a file, an agent's card or a contact to anyone who has them.
//!
//! Promises: a share opens exactly as often as it may, however many clients race. A share that is
//! unknown, expired, used up or without its thing looks the same. The table holds only hashes of
//! ids. The key of a file stays behind `#` in the link, where it never reaches the server.

pub(crate) mod http;
mod page;
mod rules;
mod store;

pub use self::store::{delete, end_some, forget};
