//! Credentials, their verification and their end.
//!
//! There are three kinds of caller: a [`user::User`] (access token of a live session), an
//! [`agent::Agent`] (agent token), and an unauthenticated one. A token's signature or hash is
//! verified once and remembered. Each request's own query reads from Postgres whether the
//! credential is still valid, so a revocation takes effect at once on every node. The types
//! [`user::UserToken`] and [`agent::AgentToken`] have passed the first check only: their holder
//! must make the second in its own statement.
//!
//! For an agent's token, [`agent::AgentTokens::authenticate`] is the first check, and
//! [`agent::AgentToken::check_live`] the second.
//!
//! Why: ADR 11.

pub mod agent;
pub(crate) mod caller;
pub mod jwt;
pub mod key_ring;
pub(crate) mod owned;
pub(crate) mod proofs;
pub(crate) mod refresh;
mod reverify;
pub mod revoked;
pub(crate) mod secret;
pub mod server_secret;
pub(crate) mod signed;
mod token_charge;
pub(crate) mod token_keys;
pub(crate) mod turnstile;
pub(crate) mod unanswered;
pub(crate) mod usage;
pub(crate) mod user;

use axum::http::{HeaderMap, header};

pub use self::reverify::Reverify;

/// The token of `Authorization: Bearer <token>`.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}
