//! Who can call, and what ends it.
//!
//! Three principals: a [`user::User`] (access token of a live session), an [`agent::Agent`] (agent token), and nobody.
//! A token's signature or hash is proven once and remembered; whether it still *counts* is read from Postgres in each
//! request's own query, so what is revoked is dead at once on every node. Types that end in `Claim` have passed the
//! first test only: whoever takes one must make the second in its own statement.

pub mod agent;
pub(crate) mod caller;
pub mod jwt;
pub(crate) mod owned;
pub(crate) mod proofs;
pub(crate) mod refresh;
pub mod revoked;
pub(crate) mod secret;
pub(crate) mod turnstile;
pub(crate) mod usage;
pub(crate) mod user;

use axum::http::{HeaderMap, header};

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
