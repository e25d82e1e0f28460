//! A node's own windows, for as long as Redis is away.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};

use super::{
    Rule,
    table::{Budget, Limit},
};

/// When calls were admitted, oldest first.
type Log = VecDeque<DateTime<Utc>>;

/// Logs of what was admitted, by limit and key.
#[derive(Default)]
pub struct LocalWindows(Mutex<Windows>);

#[derive(Default)]
struct Windows {
    logs: HashMap<(Limit, String), Log>,
    /// How many keys there may be before the next clean-up: doubles with what a clean-up leaves, so that its cost is
    /// spread over the calls that filled it.
    crowd: usize,
}

/// Keys kept before those with nothing left in their window are thrown out.
const CROWD: usize = 100_000;

impl LocalWindows {
    /// Charges all rules or none; returns the denier with its wait, and what is left of each rule.
    pub fn take(
        &self,
        rules: &[(Rule<'_>, Budget)],
        now: DateTime<Utc>,
    ) -> (Option<(usize, Duration)>, Vec<u32>) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Windows { logs, crowd } = &mut *windows;
        if logs.len() > (*crowd).max(CROWD) {
            // Longer windows than a day are not in the table, and an operator's may forget a little here.
            logs.retain(|_, log| log.back().is_some_and(|last| now - *last < chrono::TimeDelta::hours(24)));
            *crowd = 2 * logs.len();
        }
        let mut denied: Option<(usize, Duration)> = None;
        let mut left = Vec::with_capacity(rules.len());
        for (n, (Rule { limit, key, .. }, budget)) in rules.iter().enumerate() {
            let log = logs.entry((*limit, (*key).to_owned())).or_default();
            let since = now - budget.window;
            while log.front().is_some_and(|oldest| *oldest <= since) {
                log.pop_front();
            }
            let used = u32::try_from(log.len()).unwrap_or(u32::MAX);
            left.push(budget.count.saturating_sub(used));
            if used >= budget.count {
                let wait = log
                    .front()
                    .map_or(budget.window, |oldest| (*oldest - since).to_std().unwrap_or_default());
                if denied.is_none_or(|(_, longest)| wait > longest) {
                    denied = Some((n, wait));
                }
            }
        }
        if denied.is_none() {
            for ((Rule { limit, key, .. }, _), left) in
                rules.iter().zip(&mut left).filter(|((rule, _), _)| rule.charge)
            {
                logs.entry((*limit, (*key).to_owned())).or_default().push_back(now);
                *left -= 1;
            }
        }
        (denied, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_exact_and_denials_are_free() {
        let windows = LocalWindows::default();
        let rule = Rule { limit: Limit::AgentMessageSend, key: "a", charge: true };
        let rule = [(rule, Budget { count: 2, window: Duration::from_secs(1) })];
        let start = DateTime::<Utc>::UNIX_EPOCH;
        let at = |ms| start + Duration::from_millis(ms);
        assert!(windows.take(&rule, at(0)).0.is_none());
        assert!(windows.take(&rule, at(400)).0.is_none());
        for ms in [401, 600, 999] {
            let (denied, _) = windows.take(&rule, at(ms));
            assert_eq!(denied, Some((0, Duration::from_millis(1000 - ms))));
        }
        assert!(windows.take(&rule, at(1000)).0.is_none());
        assert!(windows.take(&rule, at(1001)).0.is_some());
    }
}
