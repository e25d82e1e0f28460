//! `GET /limits`.

use std::{collections::HashMap, time::Duration};

use axum::extract::State;
use blindpipe_protocol::limits::{Bucket, Buckets, Storage};

use super::store;
use crate::{
    auth::caller::Caller,
    db::Db,
    error::Result,
    features::files::{self, StorageQuota},
    limits::{
        Limiter, Rule,
        table::{Limit, Per},
    },
};

/// `GET /limits`: the caller's limits, in the order of the interface.
///
/// Caller: user or agent. Answers 200 with [`Buckets`], which has the whole list.
pub async fn list(
    caller: Caller,
    limiter: Limiter,
    State(db): State<Db>,
    State(quota): State<StorageQuota>,
) -> Result<axum::Json<Buckets>> {
    let storage = Storage {
        limit_bytes: quota.0,
        used_bytes: files::used_bytes(&db.read().await?, caller.principal()).await?,
    };
    let (tier, guards) = match &caller {
        Caller::User(user) => {
            let budgets = [Limit::LoginFail, Limit::CodeTries].map(|limit| limiter.budget(limit));
            (None, Some(store::guards(&db, user.id, budgets).await?))
        }
        Caller::Agent(agent) => (Some(limiter.tier(agent.id).await), None),
    };
    let email = guards.as_ref().map(|guards| guards.email.clone());
    let key_of = |limit: Limit| match (limit.per(), &caller) {
        (Per::Email, Caller::User(_)) => email.clone(),
        (Per::Session, Caller::User(user)) => Some(user.session.to_string()),
        (Per::User | Per::Principal, Caller::User(user)) => Some(user.id.to_string()),
        (Per::Agent | Per::Principal, Caller::Agent(agent)) => Some(agent.id.to_string()),
        _ => None,
    };
    let rules: Vec<Rule> = Limit::ALL
        .iter()
        .filter_map(|limit| Some(Rule::ask(*limit, key_of(*limit)?)))
        .collect();
    let statuses = limiter.look(&rules).await;
    let mut remaining: HashMap<Limit, (u32, Duration)> = statuses
        .iter()
        .map(|status| (status.limit, (status.remaining, status.resets_in)))
        .collect();
    if let Some(guards) = &guards {
        remaining.insert(Limit::LoginFail, guards.logins);
        remaining.insert(Limit::CodeTries, guards.codes);
    }
    let mine = |limit: &Limit| match (limit.per(), &caller) {
        (Per::AgentAndRoute, _) => tier == Some(*limit),
        // The budgets of an address or an origin are not the caller's alone.
        (Per::Ip | Per::IpAndRoute | Per::Origin, _) | (Per::Agent, Caller::User(_)) => false,
        (Per::Principal | Per::Agent, _) | (_, Caller::User(_)) => true,
        _ => false,
    };
    let data = Limit::ALL.iter().filter(|limit| mine(limit)).map(|limit| {
        let budget = limiter.budget(*limit);
        let remaining = remaining.get(limit);
        Bucket {
            scope: limit.scope().to_owned(),
            limit: budget.to_string(),
            count: budget.count,
            window_seconds: budget.window.as_secs(),
            per: limit.per(),
            remaining: remaining.map(|(calls, _)| *calls),
            resets_in_ms: remaining
                .map(|(_, resets)| u64::try_from(resets.as_millis()).unwrap_or(u64::MAX)),
        }
    });
    Ok(axum::Json(Buckets {
        data: data.collect(),
        next_cursor: None,
        storage,
    }))
}
