//! Accounts: codes by mail, registration, logins by password and by code, passwords, the end of an account.
//!
//! Promises: a known and an unknown e-mail look alike from outside; failed logins and wrong codes are counted in
//! Postgres, so no crash and no flush forgets them; another password ends the sessions that the one before began; of a
//! deleted account nothing works from the answer on.
//!
//! Every way of signing in ends in [`Accounts::sign_in`], with the transaction that has proven who it is.

pub(crate) mod http;
pub mod jobs;
pub(crate) mod me;
mod rules;
pub(crate) mod session;
mod store;

use crate::{auth::secret::MacKey, config::ServerSecret};

pub(crate) use http::Accounts;
pub use rules::Scene;

/// Derives codes; clones share the key.
#[derive(Clone)]
pub struct Codes(MacKey);

impl Codes {
    /// With a key of their own.
    pub fn new(secret: &ServerSecret) -> Self {
        Codes(MacKey::derive(secret, "mailed code"))
    }
}
