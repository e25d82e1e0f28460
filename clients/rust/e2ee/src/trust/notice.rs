//! The notices for a person: the words that a client shows beside a conversation.

use crate::{KeyId, Principal};

/// The notices for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    pub kind: NoticeKind,
    pub about: Principal,
    pub key: Option<KeyId>,
}

/// The kinds of notices. Their names are the same in every language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeKind {
    /// A key of somebody already known, signed by an accepted one.
    IntroducedKey,
    /// A key waits for a tap.
    WaitingKey,
    /// A key of small order: no key.
    UnusableKey,
    /// A key left the directory.
    RetiredKey,
    /// A retired key is shown again.
    ReturnedKey,
    /// A key on this person's own list that this person did not add: an alarm.
    OwnListKey,
    /// The key of the link is not listed or is retired, and nothing leads from it to the present one.
    LinkRetired,
    MemberAdded,
    MemberRemoved,
    /// An agent sees all from now on.
    AgentSeesAll,
    /// The sender is no member as the person is shown.
    NotMember,
    /// The rotator names another secret before than the one held.
    OtherSecretBefore,
    /// A message of the current epoch is under a secret that was not given to this reader.
    OtherSecret,
    /// The signed time is more than 5 minutes from the server's.
    OtherTime,
    /// It came in clear: anybody on the way may have written it.
    NotEncrypted,
    /// It names a message that it does not prove to answer: no quote is shown.
    NoQuote,
}

impl NoticeKind {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IntroducedKey => "introduced_key",
            Self::WaitingKey => "waiting_key",
            Self::UnusableKey => "unusable_key",
            Self::RetiredKey => "retired_key",
            Self::ReturnedKey => "returned_key",
            Self::OwnListKey => "own_list_key",
            Self::LinkRetired => "link_retired",
            Self::MemberAdded => "member_added",
            Self::MemberRemoved => "member_removed",
            Self::AgentSeesAll => "agent_sees_all",
            Self::NotMember => "not_member",
            Self::OtherSecretBefore => "other_secret_before",
            Self::OtherSecret => "other_secret",
            Self::OtherTime => "other_time",
            Self::NotEncrypted => "not_encrypted",
            Self::NoQuote => "no_quote",
        }
    }

    pub(crate) const fn of(self, about: Principal, key: Option<KeyId>) -> Notice {
        Notice {
            kind: self,
            about,
            key,
        }
    }
}
