//! Charges for guesses of agent tokens, and why a token is refused.

use std::{fmt::Display, time::Duration};

use crate::{
    error::Error,
    limits::{
        Decision, Limits, Rule,
        table::{Budget, Limit},
    },
};

/// The reason that a token was refused, for all callers that waited for one proof.
pub(super) enum TokenRefusal {
    Invalid,
    TooMany(Limit, Budget, Duration),
    Failed(Error),
}

/// A charge that only a refused token keeps.
pub(super) struct Charge<'a> {
    limits: &'a Limits,
    rules: Vec<Rule>,
    decision: Decision,
}

impl<'a> Charge<'a> {
    pub(super) async fn take(
        limits: &'a Limits,
        limit: Limit,
        key: impl Display,
    ) -> Result<Self, TokenRefusal> {
        let rules = Rule::charges_on("", limit, key);
        let decision = limits.decide(&rules).await;
        if let Some((denier, wait)) = decision.denied {
            let budget = limits.budget_of(&rules[denier]);
            return Err(TokenRefusal::TooMany(limit, budget, wait));
        }
        Ok(Charge {
            limits,
            rules,
            decision,
        })
    }

    pub(super) async fn refund(self) {
        self.limits.refund(&self.rules, &self.decision).await;
    }
}

impl From<Error> for TokenRefusal {
    fn from(error: Error) -> Self {
        TokenRefusal::Failed(error)
    }
}
