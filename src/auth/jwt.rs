//! Access tokens: HS256, 300 s, by a ring of named keys of which the first signs and all verify.

use std::{collections::HashMap, sync::Arc};

use chrono::{DateTime, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use moka::sync::Cache;
use serde::{Deserialize, Serialize};

use super::{dead::Dead, secret::MacKey};
use crate::{
    clock::Clock,
    config::KeyRing,
    error::{Code, Error, Result},
    ids::{SessionId, UserId},
    limits::quotas::ACCESS_TOKEN_LIFE,
    random::Random,
};

const AUDIENCE: &str = "blindpipe";
const KIND: &str = "at+jwt";
/// Clocks of nodes may differ by this much.
const LEEWAY_SECONDS: i64 = 5;

/// What a token says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claims {
    iss: String,
    aud: String,
    /// The user.
    pub sub: UserId,
    /// The device, as it was named when the token was made.
    pub did: String,
    /// The session: what is looked up in Postgres.
    pub sid: SessionId,
    iat: i64,
    exp: i64,
    jti: String,
}

impl Claims {
    /// When the token ends.
    pub fn expires_at(&self) -> DateTime<Utc> {
        DateTime::from_timestamp(self.exp, 0).unwrap_or_default()
    }
}

/// Makes and proves access tokens; clones share the keys.
#[derive(Clone)]
pub struct AccessTokens {
    clock: Clock,
    random: Random,
    issuer: Arc<str>,
    signing: Arc<(String, EncodingKey)>,
    verifying: Arc<HashMap<String, DecodingKey>>,
    rules: Arc<Validation>,
    /// Tokens whose signature was proven, by a MAC with a key of this process.
    proven: Cache<[u8; 32], Arc<Claims>>,
    key: MacKey,
    /// Sessions that no longer count.
    pub dead: Dead,
}

impl AccessTokens {
    /// From the ring; fails if a token signed now would not be accepted.
    pub fn new(
        ring: &KeyRing,
        issuer: &str,
        clock: Clock,
        random: Random,
        dead: Dead,
    ) -> Result<Self, String> {
        let (kid, key) = ring.0.first().ok_or("the key ring is empty")?;
        let mut rules = Validation::new(Algorithm::HS256);
        rules.set_audience(&[AUDIENCE]);
        rules.set_issuer(&[issuer]);
        rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        // Expiry is judged below, by our clock and with our leeway.
        rules.validate_exp = false;
        let tokens = AccessTokens {
            key: MacKey::from_bytes(random.bytes()),
            proven: Cache::builder().max_capacity(100_000).time_to_live(ACCESS_TOKEN_LIFE).build(),
            clock,
            random,
            issuer: issuer.into(),
            signing: Arc::new((kid.clone(), EncodingKey::from_secret(key))),
            verifying: Arc::new(
                ring.0.iter().map(|(kid, key)| (kid.clone(), DecodingKey::from_secret(key))).collect(),
            ),
            rules: Arc::new(rules),
            dead,
        };
        let probe = tokens
            .sign(UserId(uuid::Uuid::nil()), "start", SessionId(uuid::Uuid::nil()))
            .map_err(|error| format!("{error:?}"))?;
        tokens.verify(&probe).map_err(|error| format!("{error:?}"))?;
        Ok(tokens)
    }

    /// A token for one session.
    pub fn sign(&self, user: UserId, device: &str, session: SessionId) -> Result<String> {
        let now = self.clock.now().timestamp();
        let life = i64::try_from(ACCESS_TOKEN_LIFE.as_secs()).unwrap_or_default();
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
        let mut header = Header::new(Algorithm::HS256);
        header.typ = Some(KIND.to_owned());
        header.kid = Some(self.signing.0.clone());
        jsonwebtoken::encode(&header, &claims, &self.signing.1)
            .map_err(|error| Error::broken(Code::InternalError, error))
    }

    /// What a genuine, unexpired token says; `UNAUTHORIZED` for any other.
    pub fn verify(&self, token: &str) -> Result<Arc<Claims>> {
        let claims =
            self.prove(token).filter(|claims| !self.dead.has(claims.sid.0)).ok_or(Code::Unauthorized)?;
        let late = self.clock.now().timestamp() - claims.exp;
        if late > LEEWAY_SECONDS { Err(Code::Unauthorized.into()) } else { Ok(claims) }
    }

    /// Whether a token that [`verify`](Self::verify) refused is genuine and merely too old.
    pub fn is_expired(&self, token: &str) -> bool {
        self.prove(token).is_some_and(|claims| self.clock.now().timestamp() > claims.exp)
    }

    /// The claims of a genuine token, however old. A signature is checked once; the same bytes stay genuine.
    fn prove(&self, token: &str) -> Option<Arc<Claims>> {
        if token.len() > 2048 {
            return None;
        }
        let key = self.key.mac(&[token.as_bytes()]);
        if let Some(claims) = self.proven.get(&key) {
            return Some(claims);
        }
        let claims = Arc::new(self.check(token)?);
        self.proven.insert(key, claims.clone());
        Some(claims)
    }

    fn check(&self, token: &str) -> Option<Claims> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        if header.typ.as_deref() != Some(KIND) {
            return None;
        }
        let key = self.verifying.get(header.kid.as_deref()?)?;
        let claims = jsonwebtoken::decode::<Claims>(token, key, &self.rules).ok()?.claims;
        (claims.iat <= claims.exp).then_some(claims)
    }
}
