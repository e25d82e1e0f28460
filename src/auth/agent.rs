//! Agents and their tokens: `hsk_`, 8 lookup characters, 26 secret characters, 6 of a checksum.
//!
//! bcrypt verifies a token once. The node keeps the proof for ten minutes after its last use, under
//! a MAC of the token with a key of this process. [`Proofs`] shares it with the other nodes. Each
//! request asks Postgres whether the token is still valid.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{FromRef, FromRequestParts, RawPathParams},
    http::request::Parts,
};
use moka::future::Cache;
use secrecy::SecretString;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio_util::task::TaskTracker;

use super::{
    bearer,
    caller::{Caller, VerifiedCredential},
    proofs::Proofs,
    revoked::RevokedCredentials,
    secret::{Hasher, MacKey},
    token_charge::{Charge, TokenRefusal},
    usage::TokenUse,
};
use crate::{
    db::{Db, Tx},
    error::{Code, Error, Result},
    ids::{AgentId, TokenId},
    limits::{
        Limits,
        address::ClientIp,
        buffers::{ByteAccount, Owner},
        refusal,
        table::Limit,
    },
    metrics,
    planted::PlantedBug,
    random::{self, Random},
    supervisor,
};

/// The first characters of every agent token.
pub const PREFIX: &str = "hsk_";
const LOOKUP_CHARS: usize = 8;
const SECRET_CHARS: usize = 26;
const CHECKSUM_CHARS: usize = 6;
/// Life of a proof in this process after its last use.
const VERIFIED_TTL: Duration = Duration::from_secs(600);
/// Most proofs that this process keeps.
const VERIFIED_CAPACITY: u64 = 100_000;
/// Interval at which a proof in use is shared again, well before its entry in Redis ends.
const PROOF_RENEWAL_INTERVAL: Duration = Duration::from_secs(180);

/// Concurrent hashes of tokens. More would only delay each other.
const MAX_CONCURRENT_HASHES: usize = 64;
/// Concurrent lookups of unknown tokens, and the size of their pool. A flood of made-up tokens with
/// right checksums delays only new clients.
pub const MAX_CONCURRENT_LOOKUPS: usize = 2;
/// Longest wait for a permit to look up or to hash.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// A new token, which its owner sees once. Cannot be printed.
pub struct NewToken {
    /// The whole token, with its prefix and checksum.
    pub token: SecretString,
    /// The characters that find the token's row.
    pub lookup: String,
}

impl NewToken {
    /// Generates a random token.
    pub fn generate(random: &Random) -> Self {
        let body = random.base62(LOOKUP_CHARS + SECRET_CHARS);
        let lookup = body[..LOOKUP_CHARS].to_owned();
        let head = format!("{PREFIX}{body}");
        let check = checksum(&head);
        NewToken {
            token: format!("{head}{check}").into(),
            lookup,
        }
    }
}

/// CRC32 in base 62. It lets the node refuse junk without a lookup, and secret scanners recognise a
/// token.
fn checksum(head: &str) -> String {
    let mut rest = crc32fast::hash(head.as_bytes()) as usize;
    let mut digits = [b'0'; CHECKSUM_CHARS];
    for digit in digits.iter_mut().rev() {
        *digit = random::BASE62[rest % 62];
        rest /= 62;
    }
    digits.iter().copied().map(char::from).collect()
}

/// The lookup characters of a well-formed token.
fn lookup_of(token: &str) -> Option<&str> {
    let well_formed = token.len() == PREFIX.len() + LOOKUP_CHARS + SECRET_CHARS + CHECKSUM_CHARS
        && token.starts_with(PREFIX)
        && token
            .bytes()
            .skip(PREFIX.len())
            .all(|byte| byte.is_ascii_alphanumeric());
    if !well_formed {
        return None;
    }
    let (head, check) = token.split_at(token.len() - CHECKSUM_CHARS);
    (checksum(head) == check).then(|| &token[PREFIX.len()..PREFIX.len() + LOOKUP_CHARS])
}

/// A verified token. It may have been revoked since, so its holder must ask Postgres.
#[derive(Clone, Copy, Debug)]
pub struct AgentToken {
    pub agent: AgentId,
    /// The token's id, for the check that it is still valid.
    pub token: TokenId,
}

/// An agent whose token is valid.
#[derive(Clone, Copy, Debug)]
pub struct Agent {
    pub id: AgentId,
    pub token: TokenId,
}

/// The parts of [`AgentTokens`].
pub struct AgentTokenParts {
    pub lookup_db: Db,
    pub hasher: Hasher,
    pub limits: Limits,
    pub proofs: Proofs,
    pub revoked: RevokedCredentials,
    pub used: TokenUse,
    pub tasks: TaskTracker,
}

/// Verifies agent tokens; clones share the cache of proofs.
#[derive(Clone)]
pub struct AgentTokens {
    /// The pool of look-ups, which requests do not share.
    lookup_db: Db,
    hasher: Hasher,
    key: MacKey,
    limits: Limits,
    proofs: Proofs,
    looks: Arc<Semaphore>,
    hashes: Arc<Semaphore>,
    verified: Cache<[u8; 32], AgentToken>,
    /// The proofs that this node has shared lately.
    renewed: Cache<[u8; 32], ()>,
    /// Tokens that are known to be revoked.
    pub revoked: RevokedCredentials,
    /// Records when tokens were last used.
    pub used: TokenUse,
    /// Where verifications run.
    tasks: TaskTracker,
}

impl AgentTokens {
    /// Starts with an empty cache.
    pub fn new(parts: AgentTokenParts, random: &Random) -> Self {
        let AgentTokenParts {
            lookup_db,
            hasher,
            limits,
            proofs,
            revoked,
            used,
            tasks,
        } = parts;
        let verified = Cache::builder()
            .max_capacity(VERIFIED_CAPACITY)
            .time_to_idle(VERIFIED_TTL)
            .build();
        let renewed = Cache::builder()
            .max_capacity(VERIFIED_CAPACITY)
            .time_to_live(PROOF_RENEWAL_INTERVAL)
            .build();
        let key = MacKey::from_bytes(random.bytes());
        let [looks, hashes] =
            [MAX_CONCURRENT_LOOKUPS, MAX_CONCURRENT_HASHES].map(|n| Arc::new(Semaphore::new(n)));
        AgentTokens {
            lookup_db,
            hasher,
            key,
            limits,
            proofs,
            looks,
            hashes,
            verified,
            renewed,
            revoked,
            used,
            tasks,
        }
    }

    /// Finds the agent of a token that a client sends. Errors: `AGENT_TOKEN_INVALID`,
    /// `RATE_LIMITED`.
    pub async fn authenticate(&self, token: &str, ip: ClientIp) -> Result<AgentToken> {
        let Some(lookup) = lookup_of(token) else {
            metrics::token_seen("malformed");
            return Err(Code::AgentTokenInvalid.into());
        };
        let key = self.key.mac(&[token.as_bytes()]);
        if let Some(agent_token) = self.verified.get(&key).await {
            metrics::token_seen("remembered");
            if self.revoked.has(agent_token.token.into()) {
                return Err(Code::AgentTokenInvalid.into());
            }
            if self.renewed.entry(key).or_insert(()).await.is_fresh() {
                self.proofs.share(token, agent_token).await;
            }
            return Ok(agent_token);
        }
        // Concurrent callers with one token share one proof.
        let verify = self.verify(lookup, token, ip);
        let proof = Box::pin(self.verified.try_get_with(key, verify));
        proof
            .await
            .map_err(|refused: Arc<TokenRefusal>| match &*refused {
                TokenRefusal::Invalid => Code::AgentTokenInvalid.into(),
                TokenRefusal::TooMany(limit, budget, wait) => refusal(*limit, *budget, *wait),
                TokenRefusal::Failed(error) => Error::unavailable(format!("{error:?}")),
            })
    }

    /// Verifies a token in a task of its own, which outlives a caller who leaves: else a charge would
    /// stay that a right token gets back, and a hash would run without its permit.
    async fn verify(
        &self,
        lookup: &str,
        token: &str,
        ip: ClientIp,
    ) -> Result<AgentToken, TokenRefusal> {
        let (answer, answered) = oneshot::channel();
        let (tokens, lookup, token) = (self.clone(), lookup.to_owned(), token.to_owned());
        supervisor::spawn_once(&self.tasks, "agent_tokens.verify", async move {
            let verified = tokens.verify_to_the_end(&lookup, &token, ip).await;
            // Nobody may be there any more.
            answer.send(verified).ok();
        });
        answered
            .await
            .map_err(|_| Error::unavailable("the task of a token has ended"))?
    }

    /// Verifies a token by another node's proof, or by a hash. An unknown token is
    /// refused before either.
    async fn verify_to_the_end(
        &self,
        lookup: &str,
        token: &str,
        ip: ClientIp,
    ) -> Result<AgentToken, TokenRefusal> {
        // The charge precedes the look-up, so that a flood costs Postgres nothing.
        let unknown = Charge::take(&self.limits, Limit::AgentTokenUnknown, ip).await?;
        let found = self.find(lookup).await;
        // A fault of the server is nobody's guess.
        if !matches!(found, Ok(None)) {
            unknown.refund().await;
        }
        let Some((agent_token, hash)) = found? else {
            metrics::token_seen("unknown");
            return Err(TokenRefusal::Invalid);
        };
        if self.proofs.has(token, agent_token).await {
            metrics::token_seen("shared");
            return Ok(agent_token);
        }
        let _permit = permit(&self.hashes).await?;
        // The charge precedes the hash, so that parallel guesses get no more tries. A right token
        // costs nothing.
        let wrong = Charge::take(&self.limits, Limit::AgentTokenWrong, agent_token.agent).await?;
        metrics::token_seen("hashed");
        let matches = self.hasher.verify_token(token.to_owned(), hash).await;
        if !matches!(matches, Ok(false)) {
            wrong.refund().await;
        }
        if !matches? {
            return Err(TokenRefusal::Invalid);
        }
        self.proofs.share(token, agent_token).await;
        Ok(agent_token)
    }

    /// The token with these lookup characters, and its bcrypt hash.
    async fn find(&self, lookup: &str) -> Result<Option<(AgentToken, String)>> {
        let _permit = permit(&self.looks).await?;
        let client = self.lookup_db.read().await?;
        let row = client
            .query_opt(
                "-- auth.agent_token
                select token_id, agent_id, bcrypt_hash from live_agent_token
                where lookup = $1",
                &[&lookup],
            )
            .await?;
        Ok(row.map(|row| {
            (
                AgentToken {
                    token: row.get("token_id"),
                    agent: row.get("agent_id"),
                },
                row.get("bcrypt_hash"),
            )
        }))
    }
}

/// Waits for a permit of `of`, at most [`VERIFY_TIMEOUT`].
async fn permit(of: &Semaphore) -> Result<SemaphorePermit<'_>> {
    let permit = tokio::time::timeout(VERIFY_TIMEOUT, of.acquire()).await;
    permit
        .map_err(|_| Error::unavailable("too many new tokens at once"))?
        .map_err(Error::unavailable)
}

impl AgentToken {
    /// Asks Postgres whether the token is still valid.
    pub async fn check_live(&self, db: &Db, revoked: &RevokedCredentials) -> Result<Agent> {
        let client = db.read().await?;
        if !PlantedBug::TokenIsCached.is_planted()
            && client
                .query_opt(
                    "-- auth.agent
                select 1 from live_agent_token where token_id = $1 and agent_id = $2",
                    &[&self.token, &self.agent],
                )
                .await?
                .is_none()
        {
            revoked.mark_revoked(self.token.into()).await;
            return Err(Code::AgentTokenInvalid.into());
        }
        Ok(Agent {
            id: self.agent,
            token: self.token,
        })
    }
}

/// Refuses a token that has been revoked since it was verified, and locks it until the transaction
/// ends. It serves changes that must not outlive the token.
pub async fn lock_live_token(tx: &Tx, agent: AgentId, token: TokenId) -> Result<()> {
    tx.query_opt(
        "-- auth.lock_live_token
        select 1 from live_agent_token where token_id = $1 and agent_id = $2 for share",
        &[&token, &agent],
    )
    .await?
    .ok_or(Code::AgentTokenInvalid)?;
    Ok(())
}

impl<S: Send + Sync> FromRequestParts<S> for AgentToken
where
    AgentTokens: FromRef<S>,
{
    type Rejection = Error;

    /// The token must be valid. Where the path names an agent, the token must belong to it.
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        if let Some(agent_token) = parts.extensions.get::<AgentToken>() {
            return Ok(*agent_token);
        }
        let token = bearer(&parts.headers).ok_or(Code::AgentTokenInvalid)?;
        let ip = parts.extensions.get::<ClientIp>().copied();
        let ip = ip.ok_or_else(|| Error::internal(Code::InternalError, "no client address"))?;
        let tokens = AgentTokens::from_ref(state);
        let agent_token = tokens.authenticate(token, ip).await?;
        tokens.used.note(agent_token.token);
        if let Some(account) = parts.extensions.get::<ByteAccount>() {
            account.set_owner(Owner::Principal(agent_token.agent.into()));
        }
        let named = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|_| Code::NotFound)?;
        let named = named
            .iter()
            .find(|(name, _)| *name == "agent_id")
            .map(|(_, value)| value.parse::<AgentId>());
        match named {
            Some(Ok(agent)) if agent == agent_token.agent => Ok(agent_token),
            None => Ok(agent_token),
            Some(_) => Err(Code::AgentTokenInvalid.into()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Agent
where
    AgentTokens: FromRef<S>,
    Db: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        if let Some(Caller::Agent(agent)) = parts.extensions.get() {
            return Ok(*agent);
        }
        let token = AgentToken::from_request_parts(parts, state).await?;
        let (db, revoked) = (Db::from_ref(state), AgentTokens::from_ref(state).revoked);
        let agent = token.check_live(&db, &revoked).await?;
        VerifiedCredential::agent(token, db, revoked).attach(parts);
        Ok(agent)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_token_has_the_interface_s_form_and_a_checksum() {
        let minted = NewToken::generate(&Random::seeded(Clock::default(), [7; 32]));
        let token = minted.token.expose_secret();
        assert_eq!(token.len(), 44);
        assert_eq!(lookup_of(token), Some(minted.lookup.as_str()));
        // A change of any single character is refused without a lookup.
        for at in 4..44 {
            let mut other = token.to_owned().into_bytes();
            other[at] = if other[at] == b'x' { b'y' } else { b'x' };
            assert_eq!(
                lookup_of(&String::from_utf8(other).expect("ASCII")),
                None,
                "at {at}"
            );
        }
        for junk in ["", "hsk_", "hsk_é", &token[..43], &format!("{token}0")] {
            assert_eq!(lookup_of(junk), None);
        }
    }
}
