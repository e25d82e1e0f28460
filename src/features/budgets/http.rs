//! `GET /limits`.

use std::{collections::HashMap, time::Duration};

use axum::extract::State;
use serde::Serialize;

use super::store;
use crate::{
    auth::caller::Caller,
    db::Db,
    error::Result,
    http::{List, client::ClientIp},
    limits::{
        Limiter, Rule,
        table::{Limit, Per},
    },
};

/// A budget, and what is left of it where the caller has one only.
#[derive(Serialize)]
pub struct Bucket {
    scope: &'static str,
    limit: String,
    count: u32,
    window_seconds: u64,
    per: Per,
    /// Null where there is one for each route, group or conversation.
    remaining: Option<u32>,
    /// Until the oldest call leaves the window.
    resets_in_ms: Option<u64>,
}

/// `GET /limits`: the caller's budgets, in the order of the interface.
///
/// Caller: user or agent. Limit: `default_user`, 120/min, or the agent's tier. Answers 200 with a list of [`Bucket`]s, whole.
pub async fn list(
    caller: Caller,
    limiter: Limiter,
    ip: ClientIp,
    State(db): State<Db>,
) -> Result<List<Bucket>> {
    limiter.check_default(caller.principal()).await?;
    let (tier, guards) = match &caller {
        Caller::User(user) => {
            let budgets = [Limit::LoginFail, Limit::CodeTries].map(|limit| limiter.budget(limit));
            (None, Some(store::guards(&db, user.id, budgets).await?))
        }
        Caller::Agent(agent) => (Some(limiter.tier(agent.id).await), None),
    };
    let email = guards.as_ref().map(|guards| guards.email.clone());
    let key_of = |limit: Limit| match (limit.per(), &caller) {
        (Per::Ip, _) => Some(ip.to_string()),
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
        (Per::Agent, Caller::User(_)) => false,
        (Per::Ip | Per::IpAndRoute | Per::Principal | Per::Agent, _) | (_, Caller::User(_)) => true,
        _ => false,
    };
    let data = Limit::ALL.iter().filter(|limit| mine(limit)).map(|limit| {
        let budget = limiter.budget(*limit);
        let remaining = remaining.get(limit);
        Bucket {
            scope: limit.scope(),
            limit: budget.to_string(),
            count: budget.count,
            window_seconds: budget.window.as_secs(),
            per: limit.per(),
            remaining: remaining.map(|(calls, _)| *calls),
            resets_in_ms: remaining
                .map(|(_, resets)| u64::try_from(resets.as_millis()).unwrap_or(u64::MAX)),
        }
    });
    Ok(List {
        data: data.collect(),
        next_cursor: None,
    })
}
