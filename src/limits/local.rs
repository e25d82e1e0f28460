//! A node's local windows, for the time while Redis is away.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;

use super::{Rule, table::Budget};

/// When calls were admitted, oldest first.
type Log = VecDeque<DateTime<Utc>>;

/// Logs of admitted calls, by name.
#[derive(Default)]
pub struct LocalWindows(Mutex<Windows>);

#[derive(Default)]
struct Windows {
    logs: HashMap<String, Log>,
    /// The number of keys at the next clean-up. It doubles with the keys that a clean-up leaves, so
    /// the calls that filled the table share its cost.
    crowd: usize,
}

/// Number of keys at which those with an empty window are removed.
const MAX_LOCAL_KEYS: usize = 100_000;

impl LocalWindows {
    /// Charges all rules or none. Returns the denying rule with its wait, and the remaining calls
    /// of each rule.
    pub fn decide(
        &self,
        rules: &[Rule],
        budgets: &[Budget],
        now: DateTime<Utc>,
    ) -> (Option<(usize, Duration)>, Vec<u32>) {
        let mut windows = self.0.lock();
        let Windows { logs, crowd } = &mut *windows;
        if logs.len() > (*crowd).max(MAX_LOCAL_KEYS) {
            // The table has no window longer than a day. An operator's longer window may lose some
            // calls here.
            logs.retain(|_, log| {
                log.back()
                    .is_some_and(|last| now - *last < chrono::TimeDelta::hours(24))
            });
            *crowd = 2 * logs.len();
        }
        let mut denied: Option<(usize, Duration)> = None;
        let mut remaining = Vec::with_capacity(rules.len());
        for (n, (rule, budget)) in rules.iter().zip(budgets).enumerate() {
            let log = logs.entry(rule.log(&rule.key)).or_default();
            let since = now - budget.window;
            while log.front().is_some_and(|oldest| *oldest <= since) {
                log.pop_front();
            }
            let used = u32::try_from(log.len()).unwrap_or(u32::MAX);
            remaining.push(budget.count.saturating_sub(used));
            if used >= budget.count {
                // The log exceeds the share only after nodes have joined.
                let wait = log
                    .get((used - budget.count) as usize)
                    .map_or(budget.window, |oldest| {
                        (*oldest - since).to_std().unwrap_or_default()
                    });
                if denied.is_none_or(|(_, longest)| wait > longest) {
                    denied = Some((n, wait));
                }
            }
        }
        if denied.is_none() {
            for (rule, remaining) in rules
                .iter()
                .zip(&mut remaining)
                .filter(|(rule, _)| rule.charge)
            {
                logs.entry(rule.log(&rule.key)).or_default().push_back(now);
                *remaining -= 1;
            }
        }
        (denied, remaining)
    }

    /// Takes back the last charge.
    pub fn refund(&self, rules: &[Rule]) {
        let mut windows = self.0.lock();
        for rule in rules.iter().filter(|rule| rule.charge) {
            windows
                .logs
                .get_mut(&rule.log(&rule.key))
                .and_then(Log::pop_back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::table::Limit, *};

    #[test]
    fn a_share_is_exact_and_denials_are_free() {
        let windows = LocalWindows::default();
        let rules = [Rule::charge(Limit::AgentMessageSend, "a")];
        let budgets = [Budget {
            count: 2,
            window: Duration::from_secs(1),
        }];
        let start = DateTime::<Utc>::UNIX_EPOCH;
        let at = |ms| start + Duration::from_millis(ms);
        assert!(windows.decide(&rules, &budgets, at(0)).0.is_none());
        assert!(windows.decide(&rules, &budgets, at(400)).0.is_none());
        for ms in [401, 600, 999] {
            let (denied, _) = windows.decide(&rules, &budgets, at(ms));
            assert_eq!(denied, Some((0, Duration::from_millis(1000 - ms))));
        }
        assert!(windows.decide(&rules, &budgets, at(1000)).0.is_none());
        assert!(windows.decide(&rules, &budgets, at(1001)).0.is_some());
        windows.refund(&rules);
        assert!(windows.decide(&rules, &budgets, at(1002)).0.is_none());
    }
}
