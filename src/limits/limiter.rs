//! The limiter of a handler. The answer's headers show its charges.

use std::{fmt::Display, pin::pin, time::Duration};

use axum::{
    extract::{FromRef, FromRequestParts, MatchedPath},
    http::{Method, request::Parts},
};
use futures_util::future::{Either, select};

use super::{
    Decision, LimitStatus, Limits, Rule,
    headers::{ChargedLimits, refusal},
    table::{Budget, Limit},
};
use crate::{
    error::{Error, Result},
    ids::{AgentId, Principal},
    metrics,
};

/// A charged call of a budget, which can be refunded ([`Limiter::refund`]).
#[must_use = "a call that turns out to cost nothing is given back"]
pub struct Reservation {
    rules: Vec<Rule>,
    decision: Decision,
}

impl Reservation {
    /// The number of calls left.
    pub fn remaining(&self) -> u32 {
        self.decision
            .statuses
            .first()
            .map_or(0, |status| status.remaining)
    }
}

/// The route that a call is counted on.
#[derive(Clone)]
enum Route {
    /// No route.
    Nowhere,
    /// The route of a request.
    Matched(Method, MatchedPath),
    /// The route that a frame stands for: method and template.
    Named(&'static str),
}

/// The limiter of a request; clones share its charges.
#[derive(Clone)]
pub struct Limiter {
    limits: Limits,
    charged: ChargedLimits,
    /// The route, for budgets that count each route separately.
    route: Route,
}

impl Limiter {
    /// A limiter for callers that are no HTTP request, such as frames.
    pub fn detached(limits: Limits) -> Self {
        Limiter {
            limits,
            charged: ChargedLimits::default(),
            route: Route::Nowhere,
        }
    }

    /// A limiter for frames that do the same as a route, `METHOD /template`.
    pub fn detached_on(limits: Limits, route: &'static str) -> Self {
        Limiter {
            route: Route::Named(route),
            ..Limiter::detached(limits)
        }
    }

    /// Charges a rule for `key`, or refuses.
    pub async fn check(&self, limit: Limit, key: impl Display + Send) -> Result<()> {
        self.decide(&Rule::charges_on("", limit, key))
            .await
            .map(drop)
    }

    /// Charges several rules, or none of them and refuses.
    pub async fn check_all(&self, charges: &[(Limit, &(dyn Display + Sync))]) -> Result<()> {
        let rules = charges
            .iter()
            .flat_map(|(limit, key)| Rule::charges_on("", *limit, key));
        self.decide(&rules.collect::<Vec<_>>()).await.map(drop)
    }

    /// Charges a rule while `work` runs. A refusal ends the work and takes precedence over the
    /// work's own errors.
    pub async fn check_during<T>(
        &self,
        limit: Limit,
        key: impl Display + Send,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        refusal_first(self.check(limit, key), work).await
    }

    /// Charges a rule that counts each route separately.
    pub async fn check_route(&self, limit: Limit, key: impl Display + Send) -> Result<()> {
        self.decide(&Rule::charges_on(&self.route(), limit, key))
            .await
            .map(drop)
    }

    /// Charges an agent for a route without a row of its own. The tier of the agent is the budget
    /// of each route.
    pub async fn check_agent_route(&self, agent: AgentId) -> Result<()> {
        self.check_route(self.limits.tier(agent).await, agent).await
    }

    /// Charges the default budget of a principal of either kind.
    pub async fn check_default(&self, caller: Principal) -> Result<()> {
        match caller {
            Principal::User(user) => self.check_route(Limit::DefaultUser, user).await,
            Principal::Agent(agent) => self.check_agent_route(agent).await,
        }
    }

    /// Charges a rule for a call that may turn out to cost nothing, such as a budget that only
    /// failures use. Calls in progress count too. A dropped reservation stays charged.
    pub async fn reserve(&self, limit: Limit, key: impl Display + Send) -> Result<Reservation> {
        let rules = Rule::charges_on("", limit, key);
        let decision = self.decide(&rules).await?;
        Ok(Reservation { rules, decision })
    }

    /// Refunds a reservation; the answer's headers show it as left.
    pub async fn refund(&self, reservation: Reservation) {
        let Reservation { rules, decision } = reservation;
        self.charged.refund(rules[0].limit);
        self.limits.refund(&rules, &decision).await;
    }

    /// The refusal of a budget that is counted elsewhere.
    pub fn refusal(&self, limit: Limit, wait: Duration) -> Error {
        metrics::rate_limited(limit.scope());
        refusal(limit, self.limits.budget(limit), wait)
    }

    /// Reads the budgets without charging them.
    pub async fn look(&self, rules: &[Rule]) -> Vec<LimitStatus> {
        self.limits.look(rules).await.statuses
    }

    /// The tier that counts an agent's calls of routes without a row.
    pub async fn tier(&self, agent: AgentId) -> Limit {
        self.limits.tier(agent).await
    }

    /// The budget of a row, with the operator's override.
    pub fn budget(&self, limit: Limit) -> Budget {
        self.limits.budget(limit)
    }

    /// Method and template of the route.
    fn route(&self) -> String {
        let (method, path) = match &self.route {
            Route::Nowhere => return String::new(),
            Route::Named(route) => return (*route).to_owned(),
            Route::Matched(method, path) => (method, path),
        };
        // A HEAD is a GET without its body. `/v1/...` is an alias of the route.
        let method = if method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        let path = path.as_str();
        format!("{method} {}", path.strip_prefix("/v1").unwrap_or(path))
    }

    async fn decide(&self, rules: &[Rule]) -> Result<Decision> {
        let decision = self.limits.decide(rules).await;
        if let Some((denier, wait)) = decision.denied {
            let denier = &rules[denier];
            return Err(refusal(denier.limit, self.limits.budget_of(denier), wait));
        }
        // A client is shown its own budgets, not those of the site around its address.
        let own = rules.iter().zip(&decision.statuses);
        let own = own.filter(|(rule, _)| rule.times == 1);
        self.charged.add(own.map(|(_, status)| *status));
        Ok(decision)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Limiter
where
    Limits: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let charged = parts
            .extensions
            .get::<ChargedLimits>()
            .cloned()
            .unwrap_or_default();
        let route = parts
            .extensions
            .get::<MatchedPath>()
            .map_or(Route::Nowhere, |path| {
                Route::Matched(parts.method.clone(), path.clone())
            });
        Ok(Limiter {
            limits: Limits::from_ref(state),
            charged,
            route,
        })
    }
}

/// Runs both, and returns the work's outcome only if it is admitted.
async fn refusal_first<T>(
    check: impl Future<Output = Result<()>>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match select(pin!(check), pin!(work)).await {
        Either::Left((verdict, work)) => {
            verdict?;
            work.await
        }
        Either::Right((outcome, check)) => {
            check.await?;
            outcome
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::error::Code;

    fn refused() -> impl Future<Output = Result<()>> {
        ready(Err(Code::RateLimited.into()))
    }

    async fn later<T>(outcome: Result<T>) -> Result<T> {
        tokio::task::yield_now().await;
        outcome
    }

    async fn outcome<T>(
        check: impl Future<Output = Result<()>>,
        work: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, Code> {
        refusal_first(check, work)
            .await
            .map_err(|error| error.code())
    }

    #[tokio::test]
    async fn a_refusal_ends_the_work_and_comes_before_its_errors() {
        let fault = || ready(Err::<u8, Error>(Code::NotFound.into()));
        assert_eq!(
            outcome(refused(), pending::<Result<u8>>()).await,
            Err(Code::RateLimited)
        );
        assert_eq!(outcome(refused(), fault()).await, Err(Code::RateLimited));
        let late = later(Err(Code::RateLimited.into()));
        assert_eq!(outcome(late, fault()).await, Err(Code::RateLimited));
        assert_eq!(outcome(ready(Ok(())), fault()).await, Err(Code::NotFound));
    }

    #[tokio::test]
    async fn work_counts_only_once_it_is_admitted() {
        assert_eq!(outcome(ready(Ok(())), later(Ok(7))).await, Ok(7));
        assert_eq!(outcome(later(Ok(())), ready(Ok(7))).await, Ok(7));
        let undecided = refusal_first(pending(), ready(Ok(7)));
        let waited = tokio::time::timeout(Duration::from_millis(10), undecided).await;
        assert!(waited.is_err(), "nothing comes of it before the decision");
    }
}
