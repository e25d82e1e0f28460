//! The parts that authenticate callers.

use super::Base;
use crate::{
    auth::{
        agent::{AgentTokenParts, AgentTokens},
        jwt::AccessTokens,
        proofs::Proofs,
        refresh::RefreshTokens,
        revoked::RevokedCredentials,
        secret::{HashCost, Hasher},
        turnstile::Turnstile,
        unanswered::UnansweredRefreshes,
        usage::TokenUse,
    },
    config::{Config, Profile},
    features::accounts::{Accounts, Codes},
    http::client::IngressPolicy,
    limits::Limits,
    node::{Failure, Stores},
    redis::Redis,
    work::UnitOfWork,
};

/// The parts that authenticate callers.
pub(super) struct Credentials {
    pub(super) hasher: Hasher,
    pub(super) revoked: RevokedCredentials,
    pub(super) access_tokens: AccessTokens,
    pub(super) agent_tokens: AgentTokens,
}

pub(super) fn credentials(
    base: Base<'_>,
    stores: &Stores,
    limits: &Limits,
    used: TokenUse,
) -> Result<Credentials, Failure> {
    let Base {
        config,
        secret,
        clock,
        random,
        tasks,
        ..
    } = base;
    let (hasher, revoked) = (
        Hasher::new("tokens", HashCost::of(config)),
        RevokedCredentials::default(),
    );
    let access_tokens = AccessTokens::new(
        &config.access_token_keys,
        &config.public_url,
        clock.clone(),
        random.clone(),
        revoked.clone(),
    )?;
    let parts = AgentTokenParts {
        lookup_db: stores.token_db.clone(),
        hasher: hasher.clone(),
        limits: limits.clone(),
        proofs: Proofs::new(stores.redis.clone(), secret),
        revoked: revoked.clone(),
        used,
        tasks: tasks.workers.clone(),
    };
    let agent_tokens = AgentTokens::new(parts, random);
    Ok(Credentials {
        hasher,
        revoked,
        access_tokens,
        agent_tokens,
    })
}

pub(super) fn accounts(
    base: Base<'_>,
    work: &UnitOfWork,
    access_tokens: &AccessTokens,
    redis: &Redis,
) -> Result<Accounts, Failure> {
    Ok(Accounts {
        work: work.clone(),
        codes: Codes::new(base.secret),
        passwords: Hasher::new("passwords", HashCost::of(base.config)),
        turnstile: Turnstile::new(base.config, work.random().clone())?,
        access_tokens: access_tokens.clone(),
        refresh_tokens: RefreshTokens::new(base.secret),
        unanswered: UnansweredRefreshes::new(redis.clone(), base.secret),
    })
}

/// The conditions that a connection must meet.
pub(super) fn ingress(config: &Config) -> IngressPolicy {
    if config
        .trusted_proxies
        .0
        .iter()
        .any(|network| network.prefix_len() == 0)
    {
        tracing::warn!(
            operation = "node.start",
            remedy = "set TRUSTED_PROXIES to the addresses of the proxies",
            "TRUSTED_PROXIES contains every address: any client may choose its own address, \
             and limits per address mean nothing"
        );
    }
    IngressPolicy {
        tls: config.tls_cert.is_some(),
        local_only: config.profile == Profile::Dev,
        proxies: config.trusted_proxies.0.clone().into(),
        origins: config.allowed_origins.0.clone().into(),
    }
}
