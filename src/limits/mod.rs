//! The limiter: exact sliding windows over all nodes, in Redis on Redis's clock.
//!
//! All rules of a request are decided by one script call. When Redis is away each node falls back to its own share
//! (limit ÷ live nodes): never open. Login locks and code tries do not live here but in Postgres.

mod local;
pub mod quotas;
pub mod slots;
pub mod strangers;
pub mod table;
mod tiers;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    extract::{FromRef, FromRequestParts, MatchedPath},
    http::{HeaderMap, HeaderValue, request::Parts},
};

use self::{
    local::LocalWindows,
    table::{Budget, Limit, Overrides},
    tiers::Tiers,
};
use crate::{
    auth::someone::Someone,
    clock::Clock,
    db::Db,
    error::{Code, Error, Result},
    ids::AgentId,
    metrics as series,
    redis::{Redis, Script, keys},
};

/// The limiter of one node; clones share it.
#[derive(Clone)]
pub struct Limits {
    redis: Redis,
    clock: Clock,
    overrides: Overrides,
    windows: Arc<Script>,
    tiers: Tiers,
    local: Arc<LocalWindows>,
}

/// One rule's answer: what is left of its budget.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    limit: Limit,
    budget: Budget,
    left: u32,
    resets_in: Duration,
}

/// One rule of a call.
#[derive(Clone, Copy)]
struct Rule<'a> {
    limit: Limit,
    key: &'a str,
    /// Whether the call uses the budget up, or only asks whether there is any left.
    charge: bool,
}

/// A decision over all rules of a call.
struct Verdict {
    denied: Option<(usize, Duration)>,
    rooms: Vec<Room>,
}

impl Limits {
    /// A limiter with the operator's overrides.
    pub fn new(redis: Redis, db: Db, clock: Clock, overrides: Overrides) -> Self {
        let windows = Arc::new(Script::new(include_str!("sliding_window.lua")));
        Limits { redis, clock, overrides, windows, tiers: Tiers::new(db), local: Arc::default() }
    }

    /// Charges every rule, or none and refuses with `RATE_LIMITED`.
    async fn decide(&self, rules: &[Rule<'_>]) -> Result<Vec<Room>> {
        let verdict = match self.ask_redis(rules).await {
            Some(verdict) => verdict,
            None => self.ask_local(rules),
        };
        let Some((denier, wait)) = verdict.denied else { return Ok(verdict.rooms) };
        let limit = rules[denier].limit;
        series::rate_limited(limit.scope());
        Err(refusal(limit, self.overrides.budget(limit), wait))
    }

    async fn ask_redis(&self, rules: &[Rule<'_>]) -> Option<Verdict> {
        let ahead = self.clock.ahead().num_microseconds().unwrap_or_default();
        let names =
            rules.iter().map(|rule| self.redis.key(keys::window(rule.limit.scope(), rule.key))).collect();
        let mut args = vec![ahead];
        for rule in rules {
            let Budget { count, window } = self.overrides.budget(rule.limit);
            args.extend([i64::from(count), micros(window), i64::from(rule.charge)]);
        }
        let answer: Vec<i64> = self.redis.eval(&self.windows, names, args).await.ok()?;
        let [denier, wait, ref rooms @ ..] = answer[..] else { return None };
        let rooms = rules.iter().zip(rooms.chunks_exact(2)).map(|(rule, room)| Room {
            limit: rule.limit,
            budget: self.overrides.budget(rule.limit),
            left: u32::try_from(room[0]).unwrap_or_default(),
            resets_in: from_micros(room[1]),
        });
        let denied =
            usize::try_from(denier).ok().and_then(|n| n.checked_sub(1)).map(|n| (n, from_micros(wait)));
        Some(Verdict { denied, rooms: rooms.collect() })
    }

    /// The node's own share while Redis is away.
    fn ask_local(&self, rules: &[Rule<'_>]) -> Verdict {
        series::limiter_fallback();
        let nodes = self.redis.nodes();
        let now = self.clock.now();
        let shares: Vec<_> = rules
            .iter()
            .map(|rule| {
                let budget = self.overrides.budget(rule.limit);
                (*rule, Budget { count: (budget.count / nodes).max(1), ..budget })
            })
            .collect();
        let (denied, left) = self.local.take(&shares, now);
        let rooms = shares.iter().zip(left).map(|((rule, budget), left)| Room {
            limit: rule.limit,
            budget: *budget,
            left,
            resets_in: budget.window,
        });
        Verdict { denied, rooms: rooms.collect() }
    }
}

/// The 429 with everything that a client needs to wait rightly.
fn refusal(limit: Limit, budget: Budget, wait: Duration) -> Error {
    let ms = u64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
    let room = Room { limit, budget, left: 0, resets_in: wait };
    let mut error = Error::from(Code::RateLimited)
        .with("retry_after_ms", ms)
        .with("limit", budget.to_string())
        .with("scope", limit.scope())
        .retry_after(Duration::from_millis(ms));
    for (name, value) in room.headers() {
        error = error.header(name, value);
    }
    error
}

impl Room {
    fn headers(&self) -> [(&'static str, String); 2] {
        let scope = self.limit.scope();
        let resets = self.resets_in.as_millis().div_ceil(1000);
        [
            ("ratelimit", format!("\"{scope}\";r={};t={resets}", self.left)),
            (
                "ratelimit-policy",
                format!("\"{scope}\";q={};w={}", self.budget.count, self.budget.window.as_secs()),
            ),
        ]
    }
}

/// Where one request's decision waits until its answer takes it along as headers.
#[derive(Clone, Default)]
pub struct Charged(Arc<OnceLock<Room>>);

impl Charged {
    /// Writes `RateLimit` and `RateLimit-Policy` if the request was charged.
    pub fn write(&self, headers: &mut HeaderMap) {
        for (name, value) in self.0.get().iter().flat_map(|room| room.headers()) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.entry(name).or_insert(value);
            }
        }
    }
}

/// The limiter as a handler sees it: what it charges shows in the answer's headers.
#[derive(Clone)]
pub struct Limiter {
    limits: Limits,
    charged: Charged,
    /// Method and template of the route, for budgets that each route has its own of.
    route: Arc<str>,
}

impl Limiter {
    /// For callers that are no HTTP request, such as frames.
    pub fn detached(limits: Limits) -> Self {
        Limiter { limits, charged: Charged::default(), route: "".into() }
    }

    /// Charges one rule for `key`, or refuses.
    pub async fn take(&self, limit: Limit, key: impl std::fmt::Display + Send) -> Result<()> {
        self.decide(Rule { limit, key: &key.to_string(), charge: true }).await.map(drop)
    }

    /// The same, and says how many calls are left.
    pub async fn take_counted(&self, limit: Limit, key: impl std::fmt::Display + Send) -> Result<u32> {
        let room = self.decide(Rule { limit, key: &key.to_string(), charge: true }).await?;
        Ok(room.map_or(0, |room| room.left))
    }

    /// Charges one rule that counts each route by itself.
    pub async fn take_here(&self, limit: Limit, key: impl std::fmt::Display + Send) -> Result<()> {
        self.take(limit, format!("{}:{key}", self.route)).await
    }

    /// Charges an agent for a route without a row of its own: so many calls of each route, by the agent's largest group.
    pub async fn take_as_agent(&self, agent: AgentId) -> Result<()> {
        self.take_here(self.limits.tiers.of(agent).await, agent).await
    }

    /// Charges a route without a row of its own that principals of both kinds may call.
    pub async fn take_default(&self, caller: &Someone) -> Result<()> {
        match caller {
            Someone::User(user) => self.take_here(Limit::DefaultUser, user.id).await,
            Someone::Agent(agent) => self.take_as_agent(agent.id).await,
        }
    }

    /// Refuses if nothing is left of the budget, without using it: for budgets that only failures use.
    pub async fn check(&self, limit: Limit, key: impl std::fmt::Display + Send) -> Result<()> {
        self.decide(Rule { limit, key: &key.to_string(), charge: false }).await.map(drop)
    }

    /// The refusal of a budget that is counted elsewhere.
    pub fn refusal(&self, limit: Limit, wait: Duration) -> Error {
        series::rate_limited(limit.scope());
        refusal(limit, self.limits.overrides.budget(limit), wait)
    }

    async fn decide(&self, rule: Rule<'_>) -> Result<Option<Room>> {
        let rooms = self.limits.decide(&[rule]).await?;
        if let Some(room) = rooms.first() {
            // The first rule of a request is the one its answer shows.
            self.charged.0.set(*room).ok();
        }
        Ok(rooms.first().copied())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Limiter
where
    Limits: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let charged = parts.extensions.get::<Charged>().cloned().unwrap_or_default();
        let path = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        // `/v1/...` is the same route under another name.
        let path = path.strip_prefix("/v1").unwrap_or(path);
        let route = format!("{} {path}", parts.method).into();
        Ok(Limiter { limits: Limits::from_ref(state), charged, route })
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn from_micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or_default())
}
