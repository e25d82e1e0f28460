//! How streams are named, and where they belong.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Code, Result},
    ids::{AgentId, ConversationId, MessageId, Principal},
};

/// An agent's name for a stream: 1 to 64 of `A-Z a-z 0-9 . _ : -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StreamId(Arc<str>);

/// A string that is no name of a stream.
#[derive(Debug)]
pub struct BadName;

impl fmt::Display for BadName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("format|must be 1 to 64 of A-Z a-z 0-9 . _ : -")
    }
}

impl FromStr for StreamId {
    type Err = BadName;

    fn from_str(text: &str) -> std::result::Result<Self, BadName> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if (1..=64).contains(&text.len()) && text.bytes().all(fits) {
            Ok(StreamId(text.into()))
        } else {
            Err(BadName)
        }
    }
}

impl TryFrom<String> for StreamId {
    type Error = BadName;

    fn try_from(text: String) -> std::result::Result<Self, BadName> {
        text.parse()
    }
}

impl From<StreamId> for String {
    fn from(id: StreamId) -> String {
        id.0.as_ref().to_owned()
    }
}

/// One of an agent's streams.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// Whose.
    pub agent: AgentId,
    /// Which.
    pub stream: StreamId,
}

/// Where a stream belongs.
#[derive(Clone, Copy)]
pub struct StreamTarget {
    /// Where it is heard.
    pub conversation: ConversationId,
    /// What its message will answer.
    pub in_reply_to: Option<MessageId>,
}

/// The key of a stream of `who`; only agents have streams.
pub fn key_of(who: Principal, stream: StreamId) -> Result<StreamKey> {
    match who {
        Principal::Agent(agent) => Ok(StreamKey { agent, stream }),
        Principal::User(_) => Err(Code::Forbidden.into()),
    }
}
