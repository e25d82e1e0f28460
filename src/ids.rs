//! THE IDS: those of `crates/protocol/src/ids.rs`, and the generator of new ones.

use std::fmt;

pub use blindpipe_protocol::ids::*;
use uuid::Uuid;

use crate::random::Random;

/// The credential that a request or a connection was authenticated with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// The session of a user.
    Session(SessionId),
    /// The token of an agent.
    Token(TokenId),
}

impl Credential {
    /// The id without its kind.
    pub fn id(self) -> CredentialId {
        match self {
            Credential::Session(id) => id.into(),
            Credential::Token(id) => id.into(),
        }
    }
}

impl fmt::Display for Credential {
    /// The id as the wire shows it.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credential::Session(id) => id.fmt(to),
            Credential::Token(id) => id.fmt(to),
        }
    }
}

impl IdSource for Random {
    fn ulid(&self) -> Uuid {
        Random::ulid(self)
    }

    fn uuid_v7(&self) -> Uuid {
        Random::uuid_v7(self)
    }
}
