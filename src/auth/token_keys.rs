//! `ACCESS_TOKEN_KEYS`: the keys of access tokens.

use std::{collections::HashSet, fmt, str::FromStr, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

/// A key of access tokens. Cannot be printed.
#[derive(Clone)]
pub enum TokenKey {
    /// HS256: 32 bytes or more.
    Hmac(Vec<u8>),
    /// EdDSA: the seed of an Ed25519 key.
    Ed25519([u8; 32]),
}

/// Named keys of access tokens, the signing one first. Prints as the names only.
#[derive(Clone)]
pub struct KeyRing(pub Arc<Vec<(String, TokenKey)>>);

impl fmt::Debug for KeyRing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_list()
            .entries(self.0.iter().map(|(kid, _)| kid))
            .finish()
    }
}

impl FromStr for KeyRing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        let mut seen = HashSet::new();
        for (n, item) in text.split(',').map(str::trim).enumerate() {
            // The fault never repeats the value, because it is a secret.
            let fault = |what: &str| format!("entry {} {what}", n + 1);
            let (kid, key) = item.split_once(':').ok_or(fault("is not kid:base64"))?;
            let key = match key.split_once(':') {
                Some(("ed25519", seed)) => {
                    let seed = BASE64
                        .decode(seed)
                        .ok()
                        .and_then(|seed| seed.try_into().ok());
                    TokenKey::Ed25519(seed.ok_or(fault("is not base64 of 32 bytes"))?)
                }
                Some(_) => return Err(fault("is of an unknown kind: only ed25519 is named")),
                None => {
                    let key = BASE64.decode(key).ok().filter(|key| key.len() >= 32);
                    TokenKey::Hmac(key.ok_or(fault("is not base64 of 32 bytes or more"))?)
                }
            };
            if kid.is_empty() || !seen.insert(kid) {
                return Err(fault("has no name of its own"));
            }
            keys.push((kid.to_owned(), key));
        }
        Ok(KeyRing(Arc::new(keys)))
    }
}

impl KeyRing {
    /// Checks the operator's text; the error describes its fault.
    pub fn check(text: &str) -> Result<(), String> {
        text.parse::<KeyRing>().map(drop)
    }
}
