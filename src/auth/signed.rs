//! Routes that a token or the signature of their address opens.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Request},
    http::{HeaderMap, Uri, header, request::Parts},
};

use super::Reverify;
use crate::error::{Error, Result};

/// The caller of a route that a signature opens too. A token that is sent must be valid, also
/// beside a signature. Without any credential the caller is refused as one that lacks a token.
pub struct TokenOrSignature<T> {
    /// The caller of the token; none if the handler must verify the signature.
    pub caller: Option<T>,
    /// The credential of the token, for a second check.
    pub credential: Option<Arc<dyn Reverify>>,
}

/// Whether a request has a signature in its address, and no token.
pub fn is_signed(request: &Request) -> bool {
    has_signature_alone(request.uri(), request.headers())
}

fn has_signature_alone(uri: &Uri, headers: &HeaderMap) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with("sig="))
        && !headers.contains_key(header::AUTHORIZATION)
}

impl<T, S> FromRequestParts<S> for TokenOrSignature<T>
where
    T: FromRequestParts<S, Rejection = Error>,
    S: Send + Sync,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let caller = match has_signature_alone(&parts.uri, &parts.headers) {
            true => None,
            false => Some(T::from_request_parts(parts, state).await?),
        };
        Ok(TokenOrSignature {
            caller,
            credential: parts.extensions.get().cloned(),
        })
    }
}
