//! Shares: links that show a file, an agent's card or a contact to anyone who has them.
//!
//! Promises: a share opens exactly as often as it may, however many clients race. A share that is
//! unknown, expired, used up or without its target looks the same. The table holds only hashes of
//! ids. The key of a file stays behind `#` in the link, where it never reaches the server.
//!
//! An id has 190 random bits. A single statement checks the share and its subject, and records the
//! opening under the row's lock; a number in Redis would be lost with a flush. A file's share
//! answers an address that is signed for 5 minutes and names the share. The download reads the
//! share again, so a deleted share ends its addresses.
//!
//! The page is made without scripts, and its policy allows one style by its hash. A page that
//! decrypts would need scripts on the origin of the API, within reach of the key. Previews of links
//! by other services are openings too. An opening costs a write, which a limit of 30 a minute and
//! address bounds.

pub(crate) mod http;
mod page;
mod rules;
mod store;

pub use self::store::{count_downloads, delete, end_some, forget};
