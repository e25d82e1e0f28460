//! The limiter: exact sliding windows over all nodes, in Redis on Redis's clock. The limits are set
//! in `crates/protocol/src/limits.rs`; an operator changes them with `LIMIT_OVERRIDES` ([`table`]).
//!
//! All rules of a request are decided together, all or nothing, in a single round trip. Under load
//! a script call also decides other requests ([`batcher`]). In a Redis Cluster each hash slot gets
//! a call of its own, all at the same time. A denial there refunds the other charges. When Redis is
//! away each node applies its local share (limit ÷ live nodes), so the limiter never fails open.
//! Login locks and code tries live in Postgres.
//!
//! Why: ADR 13.

pub(crate) mod address;
mod batcher;
pub mod buffers;
mod headers;
mod limiter;
mod local;
pub(crate) mod quotas;
pub mod slots;
pub mod table;
mod tiers;
pub(crate) mod unauthenticated;

use std::{
    collections::BTreeMap,
    fmt::Display,
    iter::once,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio_util::task::TaskTracker;

use self::{
    batcher::{DecisionBatcher, Request, Response},
    local::LocalWindows,
    table::{Budget, Limit, Overrides, Per},
    tiers::Tiers,
};
pub(crate) use self::{
    headers::{ChargedLimits, refusal},
    limiter::{Limiter, Reservation},
};
use crate::{
    clock::Clock,
    db::Db,
    ids::AgentId,
    metrics,
    planted::PlantedBug,
    redis::{Redis, Script, keys},
};

/// Budgets of an IPv6 address that its /48 has together.
const CLIENTS_PER_SITE: u32 = 10;

/// The name of an address or e-mail in Redis, which does not show it. All nodes have the same.
pub type AddressNames = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// The limiter of one node; clones share it.
#[derive(Clone)]
pub struct Limits(Arc<Parts>);

struct Parts {
    redis: Redis,
    names: AddressNames,
    clock: Clock,
    overrides: Overrides,
    windows: Windows,
    batcher: DecisionBatcher,
    refund: Script,
    tiers: Tiers,
    local: LocalWindows,
    off: bool,
}

/// A rule of a call: a budget and its key.
#[derive(Clone, Debug)]
pub struct Rule {
    limit: Limit,
    key: String,
    /// The route that has a log of its own; empty for all routes together.
    route: String,
    charge: bool,
    /// The rule's budget, in budgets of its limit.
    times: u32,
}

impl Rule {
    /// Charges a call to `key`'s budget.
    pub fn charge(limit: Limit, key: impl Display) -> Self {
        Self::charge_on("", limit, key)
    }

    /// Charges a call to `key`'s budget for a single route.
    fn charge_on(route: &str, limit: Limit, key: impl Display) -> Self {
        Rule {
            limit,
            key: key.to_string(),
            route: route.to_owned(),
            charge: true,
            times: 1,
        }
    }

    /// The name of the log that counts it, where its key is called `key`.
    fn log(&self, key: impl Display) -> String {
        keys::window(self.limit.scope(), &self.route, key)
    }

    /// Charges a call on a route, and the network around an IPv6 address with it. A site may have
    /// 65,536 networks of the size that counts as one client.
    pub fn charges_on(route: &str, limit: Limit, key: impl Display) -> Vec<Self> {
        let key = key.to_string();
        let site = matches!(limit.per(), Per::Ip | Per::IpAndRoute)
            .then(|| address::site(&key))
            .flatten();
        let around = site.map(|site| Rule {
            times: CLIENTS_PER_SITE,
            ..Self::charge_on(route, limit, site)
        });
        once(Self::charge_on(route, limit, key))
            .chain(around)
            .collect()
    }

    /// Reads a budget without charging it.
    pub fn ask(limit: Limit, key: impl Display) -> Self {
        Rule {
            charge: false,
            ..Self::charge(limit, key)
        }
    }
}

/// The state of a rule's budget.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus {
    /// The row of the table.
    pub limit: Limit,
    /// The row's budget, with the operator's override.
    pub budget: Budget,
    /// The number of calls left now.
    pub remaining: u32,
    /// The time until the oldest call leaves the window.
    pub resets_in: Duration,
}

/// A decision over all rules of a call.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The rule with the longest denial and its wait; none if the call was admitted.
    pub denied: Option<(usize, Duration)>,
    /// The state of each rule's budget.
    pub statuses: Vec<LimitStatus>,
    /// The time of each rule's decision, in µs of Redis's clock. Empty if Redis was away and the
    /// local share decided.
    pub moments: Vec<i64>,
    /// The time when this node got the decision. The caller may have been busy until later.
    pub at: Instant,
}

impl Limits {
    /// A limiter with the operator's overrides. If it is `off` it counts nothing. Its task ends
    /// with the last clone.
    pub fn start(
        redis: Redis,
        names: AddressNames,
        db: Db,
        clock: Clock,
        overrides: Overrides,
        off: bool,
        tasks: &TaskTracker,
    ) -> Self {
        let windows = Windows {
            redis: redis.clone(),
            clock: clock.clone(),
            script: Arc::new(Script::new(include_str!("sliding_window.lua"))),
        };
        Limits(Arc::new(Parts {
            batcher: DecisionBatcher::start(windows.clone(), tasks),
            refund: Script::new(include_str!("refund.lua")),
            tiers: Tiers::new(db),
            local: LocalWindows::default(),
            names,
            redis,
            clock,
            overrides,
            windows,
            off,
        }))
    }

    /// The tier that counts an agent's calls of routes without a row.
    pub async fn tier(&self, agent: AgentId) -> Limit {
        self.0.tiers.of(agent).await
    }

    /// The budget of a row, with the operator's override.
    pub fn budget(&self, limit: Limit) -> Budget {
        self.0.overrides.budget(limit)
    }

    /// The budget of a rule.
    pub fn budget_of(&self, rule: &Rule) -> Budget {
        let Budget { count, window } = self.budget(rule.limit);
        Budget {
            count: count.saturating_mul(rule.times),
            window,
        }
    }

    /// Charges every rule, or none. Denied calls cost nothing.
    pub async fn decide(&self, rules: &[Rule]) -> Decision {
        let started = Instant::now();
        let decision = self.look(rules).await;
        metrics::limiter(decision.at.saturating_duration_since(started));
        if let Some((denier, _)) = decision.denied {
            metrics::rate_limited(rules[denier].limit.scope());
        }
        decision
    }

    /// Decides without the metrics, for callers that only read.
    async fn look(&self, rules: &[Rule]) -> Decision {
        if self.0.off {
            return Decision {
                denied: None,
                statuses: Vec::new(),
                moments: Vec::new(),
                at: Instant::now(),
            };
        }
        match self.ask_redis(rules).await {
            Some(decision) if !PlantedBug::LimiterByNode.is_planted() => decision,
            _ => self.ask_local(rules),
        }
    }

    /// Takes back a decision's charges, for calls that turn out to cost nothing.
    pub async fn refund(&self, rules: &[Rule], decision: &Decision) {
        if decision.denied.is_some() {
            return;
        }
        if decision.moments.is_empty() {
            return self.0.local.refund(rules);
        }
        let charged = rules
            .iter()
            .zip(&decision.moments)
            .filter(|(rule, _)| rule.charge);
        let calls = charged.map(async |(rule, moment)| {
            let window = micros(self.budget_of(rule).window);
            self.0
                .redis
                .eval::<(), _>(&self.0.refund, &[self.name(rule)], vec![*moment, window])
                .await
                .ok();
        });
        futures_util::future::join_all(calls).await;
    }

    /// The name of a rule's log in Redis. It shows no address and no e-mail.
    fn name(&self, rule: &Rule) -> String {
        let log = match rule.limit.per() {
            Per::Ip | Per::IpAndRoute | Per::Email | Per::Origin => {
                rule.log((self.0.names)(&rule.key))
            }
            _ => rule.log(&rule.key),
        };
        self.0.redis.key(&log)
    }

    async fn ask_redis(&self, rules: &[Rule]) -> Option<Decision> {
        let names: Vec<String> = rules.iter().map(|rule| self.name(rule)).collect();
        if !self.0.redis.is_clustered() {
            return self.call(rules, names).await;
        }
        // Rules of a principal share its hash tag, so this is nearly always a single call too.
        let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (n, name) in names.iter().enumerate() {
            slots
                .entry(fred::util::redis_keyslot(name.as_bytes()))
                .or_default()
                .push(n);
        }
        if slots.len() <= 1 {
            return self.call(rules, names).await;
        }
        self.ask_apart(rules, &names, slots.into_values().collect())
            .await
    }

    /// Decides groups of rules by a call each, and refunds the charges unless all of them admit.
    async fn ask_apart(
        &self,
        rules: &[Rule],
        names: &[String],
        groups: Vec<Vec<usize>>,
    ) -> Option<Decision> {
        let parts: Vec<Vec<Rule>> = groups
            .iter()
            .map(|group| group.iter().map(|n| rules[*n].clone()).collect())
            .collect();
        let calls = groups.iter().zip(&parts).map(|(group, part)| {
            let names = group.iter().map(|n| names[*n].clone()).collect();
            self.call(part, names)
        });
        let answers = futures_util::future::join_all(calls).await;
        let whole = answers.iter().all(Option::is_some);
        let denied = answers.iter().zip(&groups).filter_map(|(answer, group)| {
            let (n, wait) = answer.as_ref()?.denied?;
            Some((group[n], wait))
        });
        let denied = denied.max_by_key(|(_, wait)| *wait);
        if !whole || denied.is_some() {
            let charged = answers
                .iter()
                .zip(&parts)
                .filter_map(|(answer, part)| Some((answer.as_ref()?, part)));
            let refunds = charged.map(|(answer, part)| self.refund(part, answer));
            futures_util::future::join_all(refunds).await;
        }
        let mut found: Vec<(usize, LimitStatus, i64)> = Vec::with_capacity(rules.len());
        for (answer, group) in answers.into_iter().zip(&groups) {
            let Decision {
                denied: own,
                statuses,
                moments,
                ..
            } = answer?;
            for ((n, mut status), moment) in group.iter().zip(statuses).zip(moments) {
                // A refunded call is left again.
                status.remaining +=
                    u32::from(denied.is_some() && own.is_none() && rules[*n].charge);
                found.push((*n, status, moment));
            }
        }
        found.sort_by_key(|(n, ..)| *n);
        let (statuses, moments) = found
            .into_iter()
            .map(|(_, status, moment)| (status, moment))
            .unzip();
        Some(Decision {
            denied,
            statuses,
            moments,
            at: Instant::now(),
        })
    }

    async fn call(&self, rules: &[Rule], names: Vec<String>) -> Option<Decision> {
        let mut args = vec![i64::try_from(rules.len()).ok()?];
        for rule in rules {
            let Budget { count, window } = self.budget_of(rule);
            args.extend([i64::from(count), micros(window), i64::from(rule.charge)]);
        }
        let question = Request { names, args };
        let answer = if self.0.redis.is_clustered() {
            // Concurrent requests have other hash slots, so a batch would not save a call.
            Response {
                numbers: self.0.windows.decide(&[question]).await?.pop()?,
                at: Instant::now(),
            }
        } else {
            self.0.batcher.ask(question).await?
        };
        let [moment, denier, wait, ref statuses @ ..] = answer.numbers[..] else {
            return None;
        };
        let statuses = rules
            .iter()
            .zip(statuses.chunks_exact(2))
            .map(|(rule, status)| LimitStatus {
                limit: rule.limit,
                budget: self.budget_of(rule),
                remaining: u32::try_from(status[0]).unwrap_or_default(),
                resets_in: from_micros(status[1]),
            });
        let denied = usize::try_from(denier)
            .ok()
            .and_then(|n| n.checked_sub(1))
            .map(|n| (n, from_micros(wait)));
        Some(Decision {
            denied,
            statuses: statuses.collect(),
            moments: vec![moment; rules.len()],
            at: answer.at,
        })
    }

    /// Decides by the node's local share while Redis is away.
    fn ask_local(&self, rules: &[Rule]) -> Decision {
        metrics::limiter_fallback();
        let nodes = match PlantedBug::LimiterByNode.is_planted() {
            true => 1,
            false => self.0.redis.nodes(),
        };
        let shares: Vec<Budget> = rules
            .iter()
            .map(|rule| {
                let budget = self.budget_of(rule);
                Budget {
                    count: (budget.count / nodes).max(1),
                    ..budget
                }
            })
            .collect();
        let (denied, remaining) = self.0.local.decide(rules, &shares, self.0.clock.now());
        let statuses =
            rules
                .iter()
                .zip(shares)
                .zip(remaining)
                .map(|((rule, budget), remaining)| LimitStatus {
                    limit: rule.limit,
                    budget,
                    remaining,
                    resets_in: budget.window,
                });
        Decision {
            denied,
            statuses: statuses.collect(),
            moments: Vec::new(),
            at: Instant::now(),
        }
    }
}

/// The script and its Redis. The script's numbers are doubles, which are exact for these counts.
#[derive(Clone)]
struct Windows {
    redis: Redis,
    clock: Clock,
    script: Arc<Script>,
}

impl Windows {
    /// Decides requests in their order. Each answer is the time and the script's values. None if
    /// Redis is away.
    async fn decide(&self, questions: &[Request]) -> Option<Vec<Vec<i64>>> {
        let names: Vec<&String> = questions.iter().flat_map(|one| &one.names).collect();
        let ahead = self.clock.ahead().num_microseconds().unwrap_or_default();
        let args = once(&ahead).chain(questions.iter().flat_map(|one| &one.args));
        let args: Vec<u8> = args
            .flat_map(|number| (*number as f64).to_le_bytes())
            .collect();
        let answer: Bytes = self
            .redis
            .eval(&self.script, &names, vec![Bytes::from(args)])
            .await
            .ok()?;
        let (numbers, _) = answer.as_chunks();
        let answer: Vec<i64> = numbers
            .iter()
            .map(|number| f64::from_le_bytes(*number) as i64)
            .collect();
        let (moment, mut rest) = answer.split_first()?;
        let each = questions.iter().map(|one| {
            let (own, others) = rest.split_at_checked(2 + 2 * one.names.len())?;
            rest = others;
            Some([&[*moment], own].concat())
        });
        each.collect()
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn from_micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or_default())
}
