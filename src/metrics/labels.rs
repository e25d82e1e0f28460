//! THE COUNTERS WHOSE SERIES ARE ALL KNOWN: name, label and values. They are 0 from a node's start:
//! Prometheus does not count the event that makes a series.

/// (name, label, its values). A counter without labels has no values.
pub const KNOWN_COUNTERS: &[(&str, &str, &[&str])] = &[
    ("panics_total", "", &[]),
    ("limiter_fallback_total", "", &[]),
    ("sessions_ahead_total", "", &[]),
    ("sessions_stolen_total", "", &[]),
    ("send_batches_total", "locks", &["first", "inside"]),
    ("objects_missing_total", "", &[]),
    ("objects_damaged_total", "", &[]),
    ("buffers_refused_total", "share", &["node", "owner"]),
    (
        "codes_tried_total",
        "outcome",
        &["right", "wrong", "needs_human", "too_many"],
    ),
    ("hashes_refused_total", "queue", &["passwords", "tokens"]),
    (
        "hints_total",
        "outcome",
        &[
            "received",
            "published",
            "unneeded",
            "unconfirmed",
            "dropped",
            "lost",
            "lagged",
            "missed",
            "unlisted",
            "unsealed",
            "replayed",
            "unreadable",
            "other_epoch",
        ],
    ),
    (
        "human_verifications_total",
        "outcome",
        &["not_asked", "passed", "refused", "unknown"],
    ),
    ("mails_total", "outcome", &["sent", "failed"]),
    (
        "passkey_logins_total",
        "outcome",
        &["signed_in", "expired", "invalid", "unknown", "copied"],
    ),
    (
        "password_logins_total",
        "outcome",
        &["right", "wrong", "locked", "robot", "limited", "undecided"],
    ),
    (
        "redis_calls_total",
        "outcome",
        &["ok", "late", "failed", "refused"],
    ),
    (
        "resumes_total",
        "outcome",
        &["fresh", "current", "replayed", "resync"],
    ),
    (
        "token_cache_total",
        "how",
        &["remembered", "shared", "hashed", "unknown", "malformed"],
    ),
    ("trace_exports_total", "outcome", &["taken", "lost"]),
    (
        "uploads_total",
        "outcome",
        &[
            "uploaded",
            "confirmed",
            "refused",
            "sha256_mismatch",
            "deleted",
        ],
    ),
];

/// Begins all of these series.
pub(super) fn begin() {
    for (name, label, values) in KNOWN_COUNTERS {
        if values.is_empty() {
            metrics::counter!(*name).increment(0);
        }
        for value in *values {
            metrics::counter!(*name, *label => *value).increment(0);
        }
    }
}

/// False if the counter is in the table, and has no such series.
pub(super) fn fits(name: &str, labels: &[(&str, &str)]) -> bool {
    let known = KNOWN_COUNTERS.iter().find(|(known, _, _)| *known == name);
    known.is_none_or(|(_, label, values)| match labels {
        [] => values.is_empty(),
        [(own, value)] => own == label && values.contains(value),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Kind, SERIES, install, panicked};

    #[test]
    fn known_counters_are_counters_of_the_table() {
        for (known, _, _) in KNOWN_COUNTERS {
            let is_counter =
                |(name, kind, _): &(&str, Kind, &str)| name == known && *kind == Kind::Counter;
            assert!(SERIES.iter().any(is_counter), "{known}");
        }
    }

    #[test]
    fn a_known_counter_is_exported_before_its_first_event() {
        let text = install().render();
        for series in [
            "sessions_stolen_total 0",
            "hints_total{outcome=\"unsealed\"} 0",
        ] {
            assert!(text.lines().any(|line| line == series), "{series}: {text}");
        }
        panicked();
        assert!(install().render().contains("\npanics_total 1\n"));
    }

    #[test]
    fn series_beside_the_table_are_found() {
        assert!(fits("uploads_total", &[("outcome", "refused")]));
        assert!(fits("panics_total", &[]));
        assert!(fits("jobs_total", &[("name", "mail"), ("outcome", "done")]));
        assert!(!fits("uploads_total", &[("outcome", "another")]));
        assert!(!fits("uploads_total", &[("how", "refused")]));
        assert!(!fits("uploads_total", &[]));
        assert!(!fits("panics_total", &[("task", "jobs")]));
    }
}
