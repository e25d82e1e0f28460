//! The ids: one line per kind of record. All are 128 bits; the wire shows a ULID or a UUID.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use crate::bad_text::BadText;

/// The error for a string that is no id of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId;

impl fmt::Display for BadId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("not an id of this kind")
    }
}

impl std::error::Error for BadId {}

/// A source of new ids: a clock and randomness, which this crate does not have.
pub trait IdSource {
    /// The bits of a new ULID.
    fn ulid(&self) -> Uuid;
    /// A new UUID of version 7.
    fn uuid_v7(&self) -> Uuid;
}

fn parse_ulid(text: &str) -> Result<Uuid, BadId> {
    // The crate accepts Crockford's look-alikes and lower case. An id here has one spelling.
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

#[cfg(feature = "schema")]
mod schema {
    use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat};

    pub fn ulid(object: ObjectBuilder) -> ObjectBuilder {
        object
            .format(Some(SchemaFormat::Custom("ulid".to_owned())))
            .pattern(Some("^[0-7][0-9A-HJKMNP-TV-Z]{25}$"))
            .examples([serde_json::json!("01ARZ3NDEKTSV4RRFFQ69G5FAV")])
    }

    pub fn uuid_v7(object: ObjectBuilder) -> ObjectBuilder {
        object
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Uuid)))
            .examples([serde_json::json!("0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e")])
    }
}

/// The bytes of an id, and the columns of Postgres that hold it.
macro_rules! bytes_and_column {
    ($name:ident) => {
        impl $name {
            /// The first id in the order of ids. No record has it.
            pub const NIL: Self = $name(Uuid::nil());

            /// The id with these bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                $name(Uuid::from_bytes(bytes))
            }

            /// The 16 bytes of the id.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        #[cfg(feature = "sql")]
        impl postgres_types::ToSql for $name {
            postgres_types::accepts!(UUID);
            postgres_types::to_sql_checked!();
            fn to_sql(
                &self,
                kind: &postgres_types::Type,
                out: &mut bytes::BytesMut,
            ) -> Result<postgres_types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
                self.0.to_sql(kind, out)
            }
        }

        #[cfg(feature = "sql")]
        impl<'a> postgres_types::FromSql<'a> for $name {
            postgres_types::accepts!(UUID);
            fn from_sql(
                kind: &postgres_types::Type,
                raw: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                Uuid::from_sql(kind, raw).map($name)
            }
        }
    };
}

macro_rules! id {
    ($(#[doc = $doc:literal] $name:ident: $parse:ident, $show:ident, $generate:ident;)+) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id.
            pub fn generate(source: &impl IdSource) -> Self {
                $name(source.$generate())
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
                text.parse().map_err(|BadId| de::Error::custom(BadText::new("format", concat!("is no ", stringify!($name)))))
            }
        }

        string_schema!($name, $doc.trim(), schema::$generate);

        bytes_and_column!($name);
    )+};
}

/// Ids that the wire never shows: they name a record of one of several kinds.
macro_rules! bare_id {
    ($($(#[doc = $doc:literal])+ $name:ident: $($of:ident),+;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        $(impl From<$of> for $name {
            fn from($of(id): $of) -> Self {
                $name(id)
            }
        })+

        bytes_and_column!($name);
    )+};
}

id! {
    /// A person with an account.
    UserId: parse_ulid, show_ulid, ulid;
    /// An agent: the interface asks for a UUID.
    AgentId: parse_uuid, show_uuid, uuid_v7;
    /// A sign-in of a device; access tokens and the refresh cookie name it.
    SessionId: parse_ulid, show_ulid, ulid;
    /// An agent token.
    TokenId: parse_ulid, show_ulid, ulid;
    /// The relation between a user and an agent.
    RelationId: parse_ulid, show_ulid, ulid;
    /// A conversation or group.
    ConversationId: parse_ulid, show_ulid, ulid;
    /// A message; also the id of the event that announces it.
    MessageId: parse_ulid, show_ulid, ulid;
    /// An agent's membership in a group.
    InstanceId: parse_ulid, show_ulid, ulid;
    /// A delivery of an event to a webhook, the same over its attempts.
    DeliveryId: parse_uuid, show_uuid, uuid_v7;
    /// A durable event.
    EventId: parse_ulid, show_ulid, ulid;
    /// A live connection.
    ConnectionId: parse_ulid, show_ulid, ulid;
    /// A running process of the server.
    NodeId: parse_ulid, show_ulid, ulid;
    /// A passkey of a user.
    PasskeyId: parse_ulid, show_ulid, ulid;
    /// A challenge for a passkey.
    ChallengeId: parse_ulid, show_ulid, ulid;
    /// The upload of a file.
    UploadId: parse_ulid, show_ulid, ulid;
    /// A file. It has the id of its upload.
    FileId: parse_ulid, show_ulid, ulid;
    /// A user's answer to an agent's request for permission scopes.
    GrantId: parse_ulid, show_ulid, ulid;
    /// A row of the access log.
    AccessId: parse_ulid, show_ulid, ulid;
}

bare_id! {
    /// The id of a principal without its kind. Users and agents draw from the same 128 bits, so it
    /// alone names an inbox.
    PrincipalId: UserId, AgentId;
    /// The id of what authorises a connection or a call: a session, an agent token, or the secret
    /// of a webhook.
    CredentialId: SessionId, TokenId;
    /// The id of a chain of the access log: of the user or the group whose data was read.
    SubjectId: UserId, ConversationId;
}

words! {
    /// A kind of principal.
    pub enum PrincipalKind {
        /// A person with an account.
        User = "user",
        /// A program that a user owns.
        Agent = "agent",
    }
}

/// A user or an agent by the id that both kinds share: the owner of an inbox, a member, a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Principal {
    /// A person with an account.
    User(UserId),
    /// A program that a user owns.
    Agent(AgentId),
}

impl Principal {
    /// The id without its kind.
    pub fn id(self) -> PrincipalId {
        match self {
            Principal::User(id) => id.into(),
            Principal::Agent(id) => id.into(),
        }
    }

    /// Whether it is a user or an agent.
    pub fn kind(self) -> PrincipalKind {
        match self {
            Principal::User(_) => PrincipalKind::User,
            Principal::Agent(_) => PrincipalKind::Agent,
        }
    }

    /// Builds a principal from the two columns that every table uses.
    pub fn from_row(kind: PrincipalKind, PrincipalId(id): PrincipalId) -> Self {
        match kind {
            PrincipalKind::User => Principal::User(UserId(id)),
            PrincipalKind::Agent => Principal::Agent(AgentId(id)),
        }
    }

    /// The id as the wire shows it.
    pub fn wire_id(self) -> String {
        self.to_string()
    }
}

impl From<UserId> for Principal {
    fn from(id: UserId) -> Self {
        Principal::User(id)
    }
}

impl From<AgentId> for Principal {
    fn from(id: AgentId) -> Self {
        Principal::Agent(id)
    }
}

impl fmt::Display for Principal {
    /// The id as the wire shows it.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::User(id) => id.fmt(to),
            Principal::Agent(id) => id.fmt(to),
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
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(|BadId| {
            de::Error::custom(BadText::new("format", "is no id of a user or an agent"))
        })
    }
}

string_schema!(
    Principal,
    "A user id (ULID) or an agent id (UUID).",
    |object| object
);

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

    #[test]
    fn the_form_of_a_principals_id_tells_its_kind() {
        for (text, kind) in [
            ("01ARZ3NDEKTSV4RRFFQ69G5FAV", PrincipalKind::User),
            ("0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e", PrincipalKind::Agent),
        ] {
            let principal: Principal = text.parse().expect(text);
            assert_eq!(
                (principal.kind(), principal.to_string()),
                (kind, text.to_owned())
            );
        }
    }
}
