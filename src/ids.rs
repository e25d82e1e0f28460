//! THE IDS: one line per kind of record. All are 128 bits, stored as `uuid`; the wire shows a ULID or a UUID.

use std::{fmt, str::FromStr};

use bytes::BytesMut;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use uuid::Uuid;

use crate::random::Random;

/// A string that is no id of the kind asked for.
#[derive(Debug)]
pub struct BadId;

fn parse_ulid(text: &str) -> Result<Uuid, BadId> {
    // The crate takes Crockford's look-alikes and lower case; an id here has one spelling.
    let id: ulid::Ulid = text.parse().map_err(|_| BadId)?;
    if id.to_string() == text {
        Ok(id.into())
    } else {
        Err(BadId)
    }
}

fn show_ulid(id: Uuid, to: &mut fmt::Formatter<'_>) -> fmt::Result {
    to.write_str(&ulid::Ulid::from(id).to_string())
}

fn parse_uuid(text: &str) -> Result<Uuid, BadId> {
    if text.len() != 36 {
        return Err(BadId);
    }
    Uuid::try_parse(text).map_err(|_| BadId)
}

fn show_uuid(id: Uuid, to: &mut fmt::Formatter<'_>) -> fmt::Result {
    fmt::Display::fmt(&id, to)
}

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident: $parse:ident, $show:ident, $generate:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new one.
            pub fn generate(random: &Random) -> Self {
                $name(random.$generate())
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result { $show(self.0, to) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result { $show(self.0, to) }
        }
        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> { $parse(text).map($name) }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> { to.collect_str(self) }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
                text.parse().map_err(|BadId| de::Error::custom(concat!("format|is no ", stringify!($name))))
            }
        }
        impl ToSql for $name {
            accepts!(UUID);
            to_sql_checked!();
            fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
                self.0.to_sql(kind, out)
            }
        }
        impl<'a> FromSql<'a> for $name {
            accepts!(UUID);
            fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                Uuid::from_sql(kind, raw).map($name)
            }
        }
    )+};
}

id! {
    /// A human.
    UserId: parse_ulid, show_ulid, ulid;
    /// An agent: the interface asks for a UUID.
    AgentId: parse_uuid, show_uuid, uuid_v7;
    /// One sign-in of one device; access tokens and the refresh cookie name it.
    SessionId: parse_ulid, show_ulid, ulid;
    /// One agent token.
    TokenId: parse_ulid, show_ulid, ulid;
    /// The tie between a user and an agent.
    RelationId: parse_ulid, show_ulid, ulid;
    /// A conversation or group.
    ConversationId: parse_ulid, show_ulid, ulid;
    /// A message; also the id of the event that announces it.
    MessageId: parse_ulid, show_ulid, ulid;
    /// An agent's place in a group.
    InstanceId: parse_ulid, show_ulid, ulid;
    /// Any other durable event.
    EventId: parse_ulid, show_ulid, ulid;
    /// One live connection.
    ConnectionId: parse_ulid, show_ulid, ulid;
    /// One running process, for as long as it lives.
    NodeId: parse_ulid, show_ulid, ulid;
    /// A passkey of a user.
    PasskeyId: parse_ulid, show_ulid, ulid;
    /// A challenge that a passkey is to answer.
    ChallengeId: parse_ulid, show_ulid, ulid;
}

/// A user or an agent by the id that both kinds share: the owner of an inbox, a member, a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Principal {
    /// A human.
    User(UserId),
    /// A program.
    Agent(AgentId),
}

impl Principal {
    /// The id without its kind. Users and agents draw from the same 128 bits, so this alone names an inbox.
    pub fn id(self) -> Uuid {
        match self {
            Principal::User(UserId(id)) | Principal::Agent(AgentId(id)) => id,
        }
    }

    /// `user` or `agent`.
    pub fn kind(self) -> &'static str {
        match self {
            Principal::User(_) => "user",
            Principal::Agent(_) => "agent",
        }
    }

    /// From the two columns that every table uses.
    pub fn from_row(kind: &str, id: Uuid) -> Self {
        if kind == "agent" {
            Principal::Agent(AgentId(id))
        } else {
            Principal::User(UserId(id))
        }
    }

    /// The id as the wire shows it.
    pub fn wire_id(self) -> String {
        match self {
            Principal::User(id) => id.to_string(),
            Principal::Agent(id) => id.to_string(),
        }
    }
}

impl FromStr for Principal {
    type Err = BadId;

    /// Users' ids and agents' differ in form.
    fn from_str(text: &str) -> Result<Self, BadId> {
        text.parse()
            .map(Principal::User)
            .or_else(|BadId| text.parse().map(Principal::Agent))
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.wire_id())
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse()
            .map_err(|BadId| de::Error::custom("format|is no id of a user or an agent"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        assert_eq!(id.parse::<UserId>().expect("a ULID").to_string(), id);
        for other in [
            "01arz3ndektsv4rrffq69g5fav",
            "O1ARZ3NDEKTSV4RRFFQ69G5FAV",
            "81ARZ3NDEKTSV4RRFFQ69G5FAV",
            "",
            "x",
        ] {
            assert!(other.parse::<UserId>().is_err(), "{other}");
        }
        assert!(
            "{0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e}"
                .parse::<AgentId>()
                .is_err()
        );
    }
}
