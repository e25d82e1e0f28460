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
    /// A repeated send is known only to the node that stored it.
    IdempotencyByNode,
    /// The sweep finds no inbox that is behind: a lost hint stays lost.
    NoSweep,
    /// An ack moves the durable position to everything that was sent.
    AckIsEarly,
    /// A page of the newest messages lacks the newest one, as a stale replica would.
    ReadsLag,
    /// A member that returns sees what was said in its absence.
    AbsenceIsSeen,
    /// A deleted message keeps its payload.
    DeletionKeepsPayload,
    /// A genuine access token is enough, whatever became of its session.
    JwtIsEnough,
    /// A node that knows an agent's token does not ask whether it is still valid.
    TokenIsCached,
    /// A revoked credential keeps its sockets.
    RevokedSocketStays,
    /// A cursor of another epoch is read from.
    NoEpoch,
    /// Each node bounds the connections that it has itself.
    CapByNode,
    /// Each node counts calls in its own memory, by its own clock.
    LimiterByNode,
    /// A person's second decision is taken as well.
    DecidedTwice,
    /// A second device's answer to a call replaces the first one.
    AnsweredTwice,
    /// A call is answered after its deadline.
    LateAnswer,
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
            PlantedBug::IdempotencyByNode => "idempotency_by_node",
            PlantedBug::NoSweep => "no_sweep",
            PlantedBug::AckIsEarly => "ack_is_early",
            PlantedBug::ReadsLag => "reads_lag",
            PlantedBug::AbsenceIsSeen => "absence_is_seen",
            PlantedBug::DeletionKeepsPayload => "deletion_keeps_payload",
            PlantedBug::JwtIsEnough => "jwt_is_enough",
            PlantedBug::TokenIsCached => "token_is_cached",
            PlantedBug::RevokedSocketStays => "revoked_socket_stays",
            PlantedBug::NoEpoch => "no_epoch",
            PlantedBug::CapByNode => "cap_by_node",
            PlantedBug::LimiterByNode => "limiter_by_node",
            PlantedBug::DecidedTwice => "decided_twice",
            PlantedBug::AnsweredTwice => "answered_twice",
            PlantedBug::LateAnswer => "late_answer",
        }
    }

    /// Whether this process has the bug: never without the feature.
    pub fn is_planted(self) -> bool {
        cfg!(feature = "planted-bugs") && *NAMED == self.name()
    }
}
