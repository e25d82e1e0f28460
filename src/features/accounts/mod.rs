//! Accounts: codes by mail, registration, logins by password and by code, passwords.
//!
//! Promises: a known and an unknown e-mail look alike from outside. Postgres counts failed logins
//! and wrong codes, so no crash and no flush loses them. Another password ends the sessions of the
//! previous one. Nothing of a deleted account works after the answer.
//!
//! Every sign-in ends in [`Accounts::sign_in`], within the transaction that has verified the user.

pub(crate) mod address;
pub(crate) mod http;
pub mod jobs;
pub(crate) mod me;
mod notices;
mod reauth;
mod rules;
pub(crate) mod session;
mod store;

use crate::{auth::key_ring::MacKeyRing, auth::server_secret::ServerSecret};

pub use self::{
    notices::{SecurityChange, notify},
    rules::Scene,
    store::{Addressee, create_user, end, keep_load_mark, load_accounts, lock},
};
pub(crate) use http::Accounts;

/// Derives codes. Clones share the key.
#[derive(Clone)]
pub struct Codes(MacKeyRing);

impl Codes {
    /// Derives a separate key from the server secret.
    pub fn new(secret: &ServerSecret) -> Self {
        Codes(secret.derive("mailed code"))
    }
}
