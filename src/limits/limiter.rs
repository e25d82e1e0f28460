//! The limiter as a handler sees it: what it charges shows in the answer's headers.

use std::{
    fmt::{Display, Write},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    extract::{FromRef, FromRequestParts, MatchedPath},
    http::{HeaderMap, HeaderName, HeaderValue, Method, request::Parts},
};
use parking_lot::Mutex;

use futures_util::future::{Either, select};
use sync_wrapper::SyncWrapper;

use super::{
    Decision, Limits, QuotaStatus, Rule,
    table::{Budget, Limit},
};
use crate::{
    error::{Code, Error, Result},
    ids::{AgentId, Principal},
    metrics,
};

/// The 429 with everything that a client needs to wait rightly.
pub fn refusal(limit: Limit, budget: Budget, wait: Duration) -> Error {
    let ms = u64::try_from(wait.as_micros().div_ceil(1000))
        .unwrap_or(u64::MAX)
        .max(1);
    let status = QuotaStatus {
        limit,
        budget,
        left: 0,
        resets_in: wait,
    };
    let mut error = Error::from(Code::RateLimited)
        .with("retry_after_ms", ms)
        .with("limit", budget.to_string())
        .with("scope", limit.scope())
        .retry_after(Duration::from_millis(ms));
    for (name, value) in headers(&[status]) {
        error = error.header(name, value);
    }
    error
}

/// `RateLimit` and `RateLimit-Policy` of all that was charged.
fn headers(statuses: &[QuotaStatus]) -> [(&'static str, String); 2] {
    let [mut left, mut policy] = [(); 2].map(|()| String::with_capacity(64 * statuses.len()));
    for status in statuses {
        let (separator, scope) = (
            if left.is_empty() { "" } else { ", " },
            status.limit.scope(),
        );
        let resets = status.resets_in.as_millis().div_ceil(1000);
        let Budget { count, window } = status.budget;
        // Nothing fails to be written into memory.
        write!(left, "{separator}\"{scope}\";r={};t={resets}", status.left).ok();
        write!(
            policy,
            "{separator}\"{scope}\";q={count};w={}",
            window.as_secs()
        )
        .ok();
    }
    [("ratelimit", left), ("ratelimit-policy", policy)]
}

/// Where one request's decisions wait until its answer takes them along as headers.
#[derive(Clone, Default)]
pub struct Charged(Arc<Mutex<Vec<QuotaStatus>>>);

impl Charged {
    /// Writes `RateLimit` and `RateLimit-Policy` if the request was charged. A refusal has brought its own.
    pub fn write(&self, to: &mut HeaderMap) {
        let statuses = self.0.lock();
        if statuses.is_empty() {
            return;
        }
        for (name, value) in headers(&statuses) {
            if let Ok(value) = HeaderValue::try_from(value) {
                to.entry(HeaderName::from_static(name)).or_insert(value);
            }
        }
    }
}

/// One call of a budget, which may be given back.
#[must_use = "what cost nothing in the end is given back"]
pub struct Charge {
    rules: [Rule; 1],
    decision: Decision,
}

impl Charge {
    /// How many calls are left.
    pub fn left(&self) -> u32 {
        self.decision
            .statuses
            .first()
            .map_or(0, |status| status.left)
    }
}

/// A decision under way, for who has something to do meanwhile. Awaited as often as one likes, it tells a refusal once.
#[must_use = "nothing is charged unless it is awaited"]
pub enum Pass {
    /// Not yet known.
    Pending(SyncWrapper<Pin<Box<dyn Future<Output = Result<()>> + Send>>>),
    /// Charged.
    Admitted,
}

impl Pass {
    /// What is still being decided.
    pub fn pending(decision: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Pass::Pending(SyncWrapper::new(Box::pin(decision)))
    }

    /// Whether it is still to be told.
    pub fn is_pending(&self) -> bool {
        matches!(self, Pass::Pending(_))
    }

    /// Works while it is decided; a refusal ends the work and comes before the work's own errors.
    pub async fn during<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let outcome = match select(&mut *self, pin!(work)).await {
            Either::Left((verdict, work)) => {
                verdict?;
                work.await
            }
            Either::Right((outcome, _)) => outcome,
        };
        if outcome.is_err() {
            self.await?;
        }
        outcome
    }
}

impl Future for Pass {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Pass::Pending(decision) = &mut *self {
            ready!(decision.get_mut().as_mut().poll(context))?;
            *self = Pass::Admitted;
        }
        Poll::Ready(Ok(()))
    }
}

/// What handlers charge.
#[derive(Clone)]
pub struct Limiter {
    limits: Limits,
    charged: Charged,
    /// For budgets that each route has its own of.
    route: Option<(Method, MatchedPath)>,
}

impl Limiter {
    /// For callers that are no HTTP request, such as frames.
    pub fn detached(limits: Limits) -> Self {
        Limiter {
            limits,
            charged: Charged::default(),
            route: None,
        }
    }

    /// Charges one rule for `key`, or refuses.
    pub async fn take(&self, limit: Limit, key: impl Display + Send) -> Result<()> {
        self.decide(&[Rule::charge(limit, key)]).await.map(drop)
    }

    /// The same, without waiting for it.
    pub fn pass(self, limit: Limit, key: impl Display + Send + 'static) -> Pass {
        Pass::pending(async move { self.take(limit, key).await })
    }

    /// Charges one rule that counts each route by itself.
    pub async fn check_route(&self, limit: Limit, key: impl Display + Send) -> Result<()> {
        self.decide(&[Rule::charge_on(&self.route(), limit, key)])
            .await
            .map(drop)
    }

    /// Charges an agent for a route without a row of its own: so many calls of each route, by its largest group.
    pub async fn check_agent_route(&self, agent: AgentId) -> Result<()> {
        self.check_route(self.limits.tier(agent).await, agent).await
    }

    /// Charges a route without a row of its own that principals of both kinds may call.
    pub async fn check_default(&self, caller: Principal) -> Result<()> {
        match caller {
            Principal::User(user) => self.check_route(Limit::DefaultUser, user).await,
            Principal::Agent(agent) => self.check_agent_route(agent).await,
        }
    }

    /// Charges one rule for a call that may turn out to cost nothing: for budgets that only failures use, so that
    /// those under way count, too. Who gives up waiting has paid.
    pub async fn charge(&self, limit: Limit, key: impl Display + Send) -> Result<Charge> {
        let rules = [Rule::charge(limit, key)];
        let decision = self.decide(&rules).await?;
        Ok(Charge { rules, decision })
    }

    /// Takes it back; the answer shows what is left without it.
    pub async fn refund(&self, charge: Charge) {
        let Charge {
            rules: [rule],
            decision,
        } = charge;
        {
            let mut charged = self.charged.0.lock();
            if let Some(status) = charged
                .iter_mut()
                .rev()
                .find(|status| status.limit == rule.limit)
            {
                status.left += 1;
            }
        }
        self.limits.refund(&[rule], &decision).await;
    }

    /// The refusal of a budget that is counted elsewhere.
    pub fn refusal(&self, limit: Limit, wait: Duration) -> Error {
        metrics::rate_limited(limit.scope());
        refusal(limit, self.limits.budget(limit), wait)
    }

    /// What is left of budgets, without using them.
    pub async fn look(&self, rules: &[Rule]) -> Vec<QuotaStatus> {
        self.limits.look(rules).await.statuses
    }

    /// The row that an agent's calls of routes without one are counted in.
    pub async fn tier(&self, agent: AgentId) -> Limit {
        self.limits.tier(agent).await
    }

    /// What the operator has made of a row.
    pub fn budget(&self, limit: Limit) -> Budget {
        self.limits.budget(limit)
    }

    /// Method and template of the route.
    fn route(&self) -> String {
        let Some((method, path)) = &self.route else {
            return String::new();
        };
        // `/v1/...` is the same route under another name.
        let path = path.as_str();
        format!("{method} {}", path.strip_prefix("/v1").unwrap_or(path))
    }

    async fn decide(&self, rules: &[Rule]) -> Result<Decision> {
        let decision = self.limits.decide(rules).await;
        if let Some((denier, wait)) = decision.denied {
            let limit = rules[denier].limit;
            return Err(refusal(limit, self.limits.budget(limit), wait));
        }
        self.charged.0.lock().extend(&decision.statuses);
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
            .get::<Charged>()
            .cloned()
            .unwrap_or_default();
        let route = parts
            .extensions
            .get::<MatchedPath>()
            .map(|path| (parts.method.clone(), path.clone()));
        Ok(Limiter {
            limits: Limits::from_ref(state),
            charged,
            route,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    fn pass(decision: impl Future<Output = Result<()>> + Send + 'static) -> Pass {
        Pass::pending(decision)
    }

    fn refused() -> Pass {
        pass(ready(Err(Code::RateLimited.into())))
    }

    async fn outcome<T>(
        mut pass: Pass,
        work: impl Future<Output = Result<T>>,
    ) -> std::result::Result<T, Code> {
        pass.during(work).await.map_err(|error| error.code())
    }

    #[tokio::test]
    async fn a_refusal_ends_the_work_and_comes_before_its_errors() {
        let fault = || ready(Err::<u8, Error>(Code::NotFound.into()));
        assert_eq!(
            outcome(refused(), pending::<Result<u8>>()).await,
            Err(Code::RateLimited)
        );
        assert_eq!(outcome(refused(), fault()).await, Err(Code::RateLimited));
        let late = pass(async {
            tokio::task::yield_now().await;
            Err(Code::RateLimited.into())
        });
        assert_eq!(outcome(late, fault()).await, Err(Code::RateLimited));
        assert_eq!(
            outcome(pass(ready(Ok(()))), fault()).await,
            Err(Code::NotFound)
        );
    }

    #[tokio::test]
    async fn work_that_is_done_does_not_wait_for_the_decision() {
        assert_eq!(outcome(pass(pending()), ready(Ok(7))).await, Ok(7));
        let mut admitted = pass(ready(Ok(())));
        (&mut admitted).await.expect("admitted");
        admitted.await.expect("still admitted");
    }
}
