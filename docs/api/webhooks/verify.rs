//! Verifies a delivery with the crates `hmac` 0.13, `sha2` 0.11 and `subtle` 2.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

const TOLERANCE_SECONDS: u64 = 300;

/// Returns the delivery id, or none if the delivery is not genuine.
///
/// - `secret`: the webhook's secret as text, with its prefix.
/// - `header`: the value of a header; names are in lower case.
/// - `body`: the request's bytes as received, before any parsing.
/// - `now`: seconds since 1970.
pub fn verify<'h>(
    secret: &str,
    header: impl Fn(&str) -> Option<&'h str>,
    body: &[u8],
    now: i64,
) -> Option<&'h str> {
    let timestamp = header("x-service-timestamp")?;
    let delivery_id = header("x-service-delivery-id")?;
    if !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if now.abs_diff(timestamp.parse().ok()?) > TOLERANCE_SECONDS {
        return None;
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).ok()?;
    mac.update(format!("{timestamp}.{delivery_id}.").as_bytes());
    mac.update(body);
    let bytes = mac.finalize().into_bytes();
    let expected: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    // After a rotation the second header carries the signature with the secret before it.
    ["x-service-signature", "x-service-signature-previous"]
        .into_iter()
        .filter_map(header)
        .any(|signature| signature.as_bytes().ct_eq(expected.as_bytes()).into())
        .then_some(delivery_id)
}
