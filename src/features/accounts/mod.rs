//! Accounts: codes by mail, registration, password login, sessions and their refresh.
//!
//! Promises: a known and an unknown e-mail look alike from outside; failed logins and wrong codes are counted in
//! Postgres, so no crash and no flush forgets them; refreshing with the same token within ten seconds gives the same
//! successor, later it ends the session.

pub mod http;
pub mod jobs;
mod rules;
mod store;

use crate::{auth::secret::MacKey, config::ServerSecret};

pub use http::Accounts;
pub use rules::{DeviceId, Scene};

/// Derives codes; clones share the key.
#[derive(Clone)]
pub struct Codes(MacKey);

impl Codes {
    /// With a key of their own.
    pub fn new(secret: &ServerSecret) -> Self {
        Codes(MacKey::derive(secret, "mailed code"))
    }
}
