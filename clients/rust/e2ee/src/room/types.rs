//! The inputs and the decisions of a room.

use std::collections::BTreeMap;

use crate::{
    Error, Principal, Sid,
    envelope::{Opened, Place},
    trust::{Notice, NoticeKind, Standing},
};

/// The messages that a member may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Everything: people, and agents that were let in so.
    All,
    /// Messages addressed to it.
    Addressed,
}

impl Visibility {
    /// The name in the interface and in stores.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Addressed => "addressed",
        }
    }

    /// The visibility of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::All, Self::Addressed]
            .into_iter()
            .find(|it| it.name() == name)
    }
}

/// The epoch as the server tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerEpoch {
    pub epoch: u32,
    pub rotation_required: bool,
    /// How many messages were sent in it.
    pub messages: u64,
}

/// The highest epoch and time of all newest secrets, and what else outlives the program. People keep
/// them for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub epoch: u32,
    /// Unix milliseconds by the rotator's clock.
    pub time: u64,
    /// The members that the last seal was for; none before the first. A newcomer is named
    /// at the next start.
    pub members: Option<BTreeMap<Principal, Visibility>>,
    /// An envelope was seen: nothing goes in clear.
    pub encrypted: bool,
    /// Members, their keys or their visibilities have changed since the newest secret.
    pub changed: bool,
}

impl Marks {
    /// Joins what two processes of a client have learned at once.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        Self {
            epoch: self.epoch.max(other.epoch),
            time: self.time.max(other.time),
            members: self.members.or(other.members),
            encrypted: self.encrypted || other.encrypted,
            changed: self.changed || other.changed,
        }
    }
}

/// The secret that this client seals with, or the step that must come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealing {
    With {
        epoch: u32,
        sid: Sid,
    },
    /// Rotate, on this epoch of the server.
    Rotate {
        base: u32,
    },
    /// An agent cannot rotate: it waits for somebody who does.
    Wait,
}

/// How this client writes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    Encrypted,
    Clear,
    /// Somebody does not speak `bp1`: in clear only if the person says so, once, visibly.
    AskPerson,
}

/// The effect of a wrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrapTaken {
    pub epoch: u32,
    pub sid: Sid,
    pub rotator: Principal,
    /// It is the newest now.
    pub newest: bool,
    pub notices: Vec<Notice>,
}

/// Something that came, and what the server says of it.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    pub sender: Principal,
    pub place: &'a Place,
    /// The envelope; none if it came in clear.
    pub envelope: Option<&'a [u8]>,
    /// The server's time, Unix milliseconds.
    pub created_at: u64,
    /// From the inbox, not from the history.
    pub live: bool,
    /// The fingerprint of the envelope that `in_reply_to` names, if this client knows it.
    pub answered: Option<[u8; 32]>,
}

/// A message that may be shown, with its notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// None if it came in clear.
    pub opened: Option<Opened>,
    /// The trust in the sender's key.
    pub standing: Option<Standing>,
    /// The key was known before this start of the program.
    pub stored: bool,
    pub notices: Vec<Notice>,
}

/// The decision about something that came and was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    Shown(Box<Shown>),
    /// It was here before: neither shown nor handled.
    Repeated,
}

/// Why something is not shown as said by anybody, and what the person is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub error: Error,
    pub notices: Vec<Notice>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let notices = Vec::new();
        Self { error, notices }
    }
}

/// A recipient's share at a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    Secret,
    Lane,
    Nothing(NoticeKind),
}
