//! RFC 6455, section 4.2: the checks of an upgrade request, and the answer. It is written by hand
//! because the sockets need the stream itself (see the crate `websocket`).

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, Version, header},
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

use crate::error::{Error, Result};

/// The answer that upgrades.
pub fn accept(version: Version, headers: &HeaderMap) -> Result<Response> {
    let says = |name: header::HeaderName, word: &str| {
        let values = headers
            .get_all(name)
            .into_iter()
            .filter_map(|value| value.to_str().ok());
        values
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case(word))
    };
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .filter(|key| key.len() == 24);
    let asked = version == Version::HTTP_11
        && says(header::CONNECTION, "upgrade")
        && says(header::UPGRADE, "websocket")
        && says(header::SEC_WEBSOCKET_VERSION, "13");
    let Some(key) = key.filter(|_| asked) else {
        let error = Error::field("", "websocket", "is no WebSocket handshake");
        return Err(error.header("sec-websocket-version", "13".to_owned()));
    };
    let accept = HeaderValue::try_from(accept_key(key.as_bytes()));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let said = response.headers_mut();
    said.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    said.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    // Base64 is always a valid header value.
    accept
        .into_iter()
        .for_each(|accept| drop(said.insert(header::SEC_WEBSOCKET_ACCEPT, accept)));
    Ok(response)
}

/// `Sec-WebSocket-Accept` for `Sec-WebSocket-Key` (RFC 6455, section 4.2.2).
fn accept_key(key: &[u8]) -> String {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat());
    BASE64.encode(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_key_is_that_of_the_rfc() {
        let accept = accept_key(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
