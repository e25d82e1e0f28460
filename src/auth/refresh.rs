//! The refresh cookie. A token is a session, a generation and a MAC over both, so no token is
//! stored. It is valid if its generation is the session's, and every node derives its successor.
//!
//! Why: ADR 17.

use axum::http::{HeaderMap, HeaderValue, header};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use cookie::Cookie;

use super::key_ring::MacKeyRing;
use crate::{auth::server_secret::ServerSecret, ids::SessionId, limits::quotas::REFRESH_TOKEN_TTL};

const NAME: &str = "refresh_token";

/// Makes and verifies refresh tokens.
#[derive(Clone)]
pub struct RefreshTokens(MacKeyRing);

impl RefreshTokens {
    /// Derives the keys of refresh tokens from `secret`.
    pub fn new(secret: &ServerSecret) -> Self {
        RefreshTokens(secret.derive("refresh token"))
    }

    /// The `Set-Cookie` for a generation of a session.
    pub fn cookie(&self, session: SessionId, generation: i32) -> HeaderValue {
        let mut token = [0; 52];
        token[..16].copy_from_slice(session.as_bytes());
        token[16..20].copy_from_slice(&generation.to_be_bytes());
        let mac = self.0.sign(&[&token[..20]]);
        token[20..].copy_from_slice(&mac);
        // The interface fixes this text to the letter.
        let cookie = format!(
            "{NAME}={}; HttpOnly; Secure; SameSite=Strict; Path=/auth; Max-Age={}",
            BASE64.encode(token),
            REFRESH_TOKEN_TTL.as_secs()
        );
        HeaderValue::try_from(cookie)
            .unwrap_or_else(|_| unreachable!("base64 and attributes are ASCII"))
    }

    /// The `Set-Cookie` that removes the cookie.
    pub fn no_cookie() -> HeaderValue {
        HeaderValue::from_static(
            "refresh_token=; HttpOnly; Secure; SameSite=Strict; Path=/auth; Max-Age=0",
        )
    }

    /// The session and generation of the request's only refresh cookie.
    pub fn read(&self, headers: &HeaderMap) -> Option<(SessionId, i32)> {
        let lines = headers
            .get_all(header::COOKIE)
            .iter()
            .filter_map(|line| line.to_str().ok());
        let mut found = lines
            .flat_map(Cookie::split_parse)
            .flatten()
            .filter(|cookie| cookie.name() == NAME);
        let cookie = found.next()?;
        if found.next().is_some() {
            // Of two cookies with this name, another page of the site planted one.
            return None;
        }
        let token: [u8; 52] = BASE64.decode(cookie.value()).ok()?.try_into().ok()?;
        let genuine = self.0.verify(&[&token[..20]], &token[20..]);
        let session = SessionId::from_bytes(*token.first_chunk()?);
        let generation = i32::from_be_bytes(token[16..20].try_into().ok()?);
        genuine.then_some((session, generation))
    }
}
