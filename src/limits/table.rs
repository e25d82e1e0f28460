//! THE LIMITS: the rows of `crates/protocol/src/limits.rs`, and the operator's overrides.
//!
//! Redis counts all limits but [`IN_POSTGRES`].

use std::{collections::HashMap, str::FromStr, sync::Arc};

pub use blindpipe_protocol::limits::{Budget, Limit, Per};

/// The limits that Postgres counts, because no flush can reset them there. A number of failed
/// logins, each within the window after the one before, locks the e-mail for a window. Wrong codes
/// are counted in an ordinary sliding window.
pub const IN_POSTGRES: &[Limit] = &[Limit::LoginFail, Limit::CodeTries];

/// The operator's changes to the table.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Arc<HashMap<Limit, Budget>>);

impl Overrides {
    /// Checks the operator's text; the error describes its fault.
    pub fn check(text: &str) -> Result<(), String> {
        text.parse::<Overrides>().map(drop)
    }

    /// The budget of `limit`, with the operator's override.
    pub fn budget(&self, limit: Limit) -> Budget {
        self.0
            .get(&limit)
            .copied()
            .unwrap_or(limit.default_budget())
    }
}

impl FromStr for Overrides {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rows = HashMap::new();
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            let (scope, budget) = item
                .split_once('=')
                .ok_or(format!("{item:?} is not scope=count/window"))?;
            let limit = Limit::from_scope(scope).ok_or(format!("there is no limit {scope:?}"))?;
            rows.insert(limit, budget.parse()?);
        }
        Ok(Overrides(Arc::new(rows)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_names_a_row_or_is_a_fault() {
        let overrides: Overrides = "agent_message_send=10/s, default_user=9/min"
            .parse()
            .expect("valid");
        assert_eq!(
            overrides.budget(Limit::AgentMessageSend).to_string(),
            "10/s"
        );
        assert_eq!(overrides.budget(Limit::UserMessageSend).to_string(), "10/s");
        for fault in [
            "agent_massage_send=1/s",
            "auth_login_fail",
            "auth_code_tries=9",
        ] {
            assert!(fault.parse::<Overrides>().is_err(), "{fault}");
        }
    }
}
