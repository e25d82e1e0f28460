//! Access tokens: HS256 or EdDSA, 300 s. The operator gives a list of named keys: the first signs,
//! and all verify. The key decides the algorithm, never the token.

use std::{collections::HashMap, sync::Arc};

use chrono::{DateTime, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, jwk::Jwk};
use moka::sync::Cache;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::{
    revoked::RevokedCredentials,
    secret::MacKey,
    token_keys::{KeyRing, TokenKey},
};
use crate::{
    clock::Clock,
    error::{Code, Error, Result},
    ids::{SessionId, UserId},
    limits::quotas::ACCESS_TOKEN_TTL,
    random::Random,
};

const AUDIENCE: &str = "blindpipe";
const KIND: &str = "at+jwt";
/// Largest accepted difference between the clocks of nodes, in seconds.
const LEEWAY_SECONDS: i64 = 5;

/// The claims of a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claims {
    iss: String,
    aud: String,
    pub sub: UserId,
    /// The name of the device when the token was made.
    pub did: String,
    /// The session, which each request looks up in Postgres.
    pub sid: SessionId,
    iat: i64,
    exp: i64,
    jti: String,
}

impl Claims {
    /// The time at which the token expires.
    pub fn expires_at(&self) -> DateTime<Utc> {
        DateTime::from_timestamp(self.exp, 0).unwrap_or_default()
    }
}

/// A key, and the validation rules of tokens that name it.
struct Key {
    algorithm: Algorithm,
    signing: EncodingKey,
    verifying: DecodingKey,
    rules: Validation,
}

impl Key {
    fn new(key: &TokenKey, issuer: &str) -> jsonwebtoken::errors::Result<Self> {
        let (algorithm, signing, verifying) = match key {
            TokenKey::Hmac(secret) => (
                Algorithm::HS256,
                EncodingKey::from_secret(secret),
                DecodingKey::from_secret(secret),
            ),
            TokenKey::Ed25519(seed) => {
                let signing = EncodingKey::from_ed_der(&pkcs8(seed));
                let public = Jwk::from_encoding_key(&signing, Algorithm::EdDSA)?;
                (Algorithm::EdDSA, signing, DecodingKey::from_jwk(&public)?)
            }
        };
        let mut rules = Validation::new(algorithm);
        rules.set_audience(&[AUDIENCE]);
        rules.set_issuer(&[issuer]);
        rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        // The node checks expiry by its own clock and leeway.
        rules.validate_exp = false;
        // The node never sets `nbf`, so a token with a malformed one is not genuine.
        rules.validate_nbf = true;
        Ok(Key {
            algorithm,
            signing,
            verifying,
            rules,
        })
    }
}

/// An Ed25519 private key in the form that the library reads: RFC 8410's header, then the seed.
fn pkcs8(seed: &[u8; 32]) -> [u8; 48] {
    let mut der = [0; 48];
    der[..16].copy_from_slice(&[
        0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
    ]);
    der[16..].copy_from_slice(seed);
    der
}

/// Signs and verifies access tokens; clones share the keys.
#[derive(Clone)]
pub struct AccessTokens {
    clock: Clock,
    random: Random,
    issuer: Arc<str>,
    /// The name of the key that signs.
    signing: Arc<str>,
    keys: Arc<HashMap<String, Key>>,
    /// Claims of tokens whose signature was verified, by a MAC with a key of this process.
    verified: Cache<[u8; 32], Arc<Claims>>,
    key: MacKey,
    /// Sessions that are known to be revoked.
    pub revoked: RevokedCredentials,
}

impl AccessTokens {
    /// Loads the keys of `ACCESS_TOKEN_KEYS`. Fails if a token signed now would not be accepted.
    pub fn new(
        keys: &SecretString,
        issuer: &str,
        clock: Clock,
        random: Random,
        revoked: RevokedCredentials,
    ) -> Result<Self, String> {
        let ring: KeyRing = keys.expose_secret().parse()?;
        let (kid, _) = ring.0.first().ok_or("the key ring is empty")?;
        let mut keys = HashMap::new();
        for (kid, key) in ring.0.iter() {
            let key = Key::new(key, issuer).map_err(|error| format!("key {kid}: {error}"))?;
            keys.insert(kid.clone(), key);
        }
        let tokens = AccessTokens {
            key: MacKey::from_bytes(random.bytes()),
            verified: Cache::builder()
                .max_capacity(100_000)
                .time_to_live(ACCESS_TOKEN_TTL)
                .build(),
            clock,
            random,
            issuer: issuer.into(),
            signing: kid.as_str().into(),
            keys: Arc::new(keys),
            revoked,
        };
        let probe = tokens
            .sign(UserId::NIL, "start", SessionId::NIL)
            .map_err(|error| format!("{error:?}"))?;
        tokens
            .verify(&probe)
            .map_err(|error| format!("{error:?}"))?;
        Ok(tokens)
    }

    /// Signs a token for a session.
    pub fn sign(&self, user: UserId, device: &str, session: SessionId) -> Result<String> {
        let now = self.clock.now().timestamp();
        let life = i64::try_from(ACCESS_TOKEN_TTL.as_secs()).unwrap_or_default();
        let claims = Claims {
            iss: self.issuer.to_string(),
            aud: AUDIENCE.to_owned(),
            sub: user,
            did: device.to_owned(),
            sid: session,
            iat: now,
            exp: now + life,
            jti: ulid::Ulid::from(self.random.ulid()).to_string(),
        };
        let key = self
            .keys
            .get(&*self.signing)
            .ok_or_else(|| Error::internal(Code::InternalError, "no signing key"))?;
        let mut header = Header::new(key.algorithm);
        header.typ = Some(KIND.to_owned());
        header.kid = Some(self.signing.to_string());
        jsonwebtoken::encode(&header, &claims, &key.signing)
            .map_err(|error| Error::internal(Code::InternalError, error))
    }

    /// The claims of a genuine, unexpired token. Errors: `UNAUTHORIZED`.
    pub fn verify(&self, token: &str) -> Result<Arc<Claims>> {
        let claims = self
            .decode(token)
            .filter(|claims| !self.revoked.has(claims.sid.into()))
            .ok_or(Code::Unauthorized)?;
        let late = self.clock.now().timestamp() - claims.exp;
        if late > LEEWAY_SECONDS {
            Err(Code::Unauthorized.into())
        } else {
            Ok(claims)
        }
    }

    /// Whether a token that [`verify`](Self::verify) refused is genuine and merely too old.
    pub fn is_expired(&self, token: &str) -> bool {
        self.decode(token)
            .is_some_and(|claims| self.clock.now().timestamp() > claims.exp)
    }

    /// The claims of a genuine token of any age. A signature is checked once, because equal bytes
    /// stay genuine.
    fn decode(&self, token: &str) -> Option<Arc<Claims>> {
        if token.len() > 2048 {
            return None;
        }
        let key = self.key.mac(&[token.as_bytes()]);
        if let Some(claims) = self.verified.get(&key) {
            return Some(claims);
        }
        let claims = Arc::new(self.check(token)?);
        self.verified.insert(key, claims.clone());
        Some(claims)
    }

    fn check(&self, token: &str) -> Option<Claims> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        if header.typ.as_deref() != Some(KIND) {
            return None;
        }
        let key = self.keys.get(header.kid.as_deref()?)?;
        let claims = jsonwebtoken::decode::<Claims>(token, &key.verifying, &key.rules)
            .ok()?
            .claims;
        (claims.iat <= claims.exp).then_some(claims)
    }
}
