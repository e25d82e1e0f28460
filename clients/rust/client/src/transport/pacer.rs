//! Keeps calls of one budget in order while it is used up.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Mutex as Turnstile, time::Instant};

/// A window that is longer may be shared with others; there the refusal itself says how long.
const MAX_PRUDENT_WAIT: Duration = Duration::from_secs(1);

/// Calls of one route, which are charged to the same budgets.
#[derive(Default)]
pub(super) struct Lane {
    /// The time before which nothing is sent.
    not_before: Mutex<Option<Instant>>,
    /// While the lane is held up, calls pass one by one, in the order in which they came.
    turnstile: Turnstile<()>,
}

impl Lane {
    fn wait(&self) -> Option<Instant> {
        let until = *self.not_before.lock();
        until.filter(|until| *until > Instant::now())
    }

    pub(super) fn hold(&self, wait: Duration) {
        let until = Instant::now() + wait;
        let mut not_before = self.not_before.lock();
        *not_before = Some(not_before.map_or(until, |before| before.max(until)));
    }

    /// Waits for this call's turn. While a guard is held, no other call waits its turn out.
    pub(super) async fn enter(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let is_free = self.wait().is_none() && self.turnstile.try_lock().is_ok();
        if is_free {
            return None;
        }
        let turn = self.turnstile.lock().await;
        while let Some(until) = self.wait() {
            tokio::time::sleep_until(until).await;
        }
        Some(turn)
    }

    /// Slows down before the server refuses: the budget's last call was just used.
    pub(super) fn observe(&self, header: &str) {
        for part in header.split(',') {
            let field = |name: &str| {
                let value = part.split(';').find_map(|field| field.strip_prefix(name));
                value.and_then(|value| value.trim().parse::<u64>().ok())
            };
            if let (Some(0), Some(seconds)) = (field("r="), field("t=")) {
                let wait = Duration::from_secs(seconds);
                if wait <= MAX_PRUDENT_WAIT {
                    self.hold(wait);
                }
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Pacer(Mutex<HashMap<String, Arc<Lane>>>);

impl Pacer {
    pub(super) fn lane(&self, name: &str) -> Arc<Lane> {
        self.0.lock().entry(name.to_owned()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_budget_that_is_used_up_slows_down() {
        let lane = Lane::default();
        lane.observe(r#""default_user";r=3;t=1, "long";r=0;t=60"#);
        assert!(lane.wait().is_none());
        lane.observe(r#""default_user";r=3;t=1, "user_message_send";r=0;t=1"#);
        assert!(lane.wait().is_some());
    }
}
