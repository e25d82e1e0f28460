//! The client's view of its budgets: the `RateLimit` headers, and the refusal.

use std::{fmt::Write, sync::Arc, time::Duration};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;

use super::{
    LimitStatus,
    table::{Budget, Limit},
};
use crate::error::Error;

/// The 429 with everything that a client needs to wait correctly.
pub fn refusal(limit: Limit, budget: Budget, wait: Duration) -> Error {
    let status = LimitStatus {
        limit,
        budget,
        remaining: 0,
        resets_in: wait,
    };
    let mut error = Error::too_many(budget.to_string(), limit.scope(), wait);
    for (name, value) in headers(&[status]) {
        error = error.header(name, value);
    }
    error
}

/// `RateLimit` and `RateLimit-Policy` of all charged budgets.
fn headers(statuses: &[LimitStatus]) -> [(&'static str, String); 2] {
    let [mut limits, mut policy] = [(); 2].map(|()| String::with_capacity(64 * statuses.len()));
    for status in statuses {
        let (separator, scope) = (
            if limits.is_empty() { "" } else { ", " },
            status.limit.scope(),
        );
        let resets = status.resets_in.as_millis().div_ceil(1000);
        let Budget { count, window } = status.budget;
        // Writing into memory cannot fail.
        write!(
            limits,
            "{separator}\"{scope}\";r={};t={resets}",
            status.remaining
        )
        .ok();
        write!(
            policy,
            "{separator}\"{scope}\";q={count};w={}",
            window.as_secs()
        )
        .ok();
    }
    [("ratelimit", limits), ("ratelimit-policy", policy)]
}

/// The budgets that a request was charged for, which its answer shows as headers. Clones share
/// them.
#[derive(Clone, Default)]
pub struct ChargedLimits(Arc<Mutex<Vec<LimitStatus>>>);

impl ChargedLimits {
    /// Adds the budgets of another decision.
    pub(super) fn add(&self, statuses: impl Iterator<Item = LimitStatus>) {
        self.0.lock().extend(statuses);
    }

    /// Adds a refunded call to the remaining calls of a budget.
    pub(super) fn refund(&self, limit: Limit) {
        let mut statuses = self.0.lock();
        let status = statuses
            .iter_mut()
            .rev()
            .find(|status| status.limit == limit);
        if let Some(status) = status {
            status.remaining += 1;
        }
    }

    /// Writes `RateLimit` and `RateLimit-Policy` if the request was charged. A refusal brings its
    /// own.
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
