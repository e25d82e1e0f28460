//! Bugs on purpose: the soak must find each of them, or it shows nothing.
//!
//! Only a build with the feature `planted-bugs` has them, and `PLANTED_BUG` names the one of a
//! process. Every other build compiles them away, and production refuses to start with the feature.

use std::{env, sync::LazyLock};

/// A bug that breaks a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A send is answered before its commit is on the disk. The start's check does not see it.
    AsynchronousCommit,
    /// A repeated send is stored again.
    NoIdempotency,
    /// A send whose outcome is unknown is answered as refused.
    UnknownIsRefused,
    /// A socket sends what hints bring, and never reads what is missing.
    HintIsTruth,
    /// A socket that comes back begins at the head, whatever its cursor.
    CursorIsIgnored,
}

/// The bug that this process is to have.
static NAMED: LazyLock<String> = LazyLock::new(|| env::var("PLANTED_BUG").unwrap_or_default());

impl PlantedBug {
    /// The name that `PLANTED_BUG` has for it.
    const fn name(self) -> &'static str {
        match self {
            PlantedBug::AsynchronousCommit => "asynchronous_commit",
            PlantedBug::NoIdempotency => "no_idempotency",
            PlantedBug::UnknownIsRefused => "unknown_is_refused",
            PlantedBug::HintIsTruth => "hint_is_truth",
            PlantedBug::CursorIsIgnored => "cursor_is_ignored",
        }
    }

    /// Whether this process has the bug: never without the feature.
    pub fn is_planted(self) -> bool {
        cfg!(feature = "planted-bugs") && *NAMED == self.name()
    }
}
