//! Times on the wire.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time: ISO 8601, UTC, milliseconds, such as `2026-03-01T12:00:00.000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(pub DateTime<Utc>);

impl From<DateTime<Utc>> for Timestamp {
    fn from(at: DateTime<Utc>) -> Self {
        Timestamp(at)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        DateTime::<Utc>::deserialize(from).map(Timestamp)
    }
}

string_schema!(
    Timestamp,
    "A moment: ISO 8601, UTC, milliseconds.",
    |object| object
        .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(
            utoipa::openapi::KnownFormat::DateTime
        )))
        .examples([serde_json::json!("2026-03-01T12:00:00.000Z")])
);

#[cfg(feature = "sql")]
impl postgres_types::ToSql for Timestamp {
    fn to_sql(
        &self,
        kind: &postgres_types::Type,
        out: &mut bytes::BytesMut,
    ) -> Result<postgres_types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.0.to_sql(kind, out)
    }

    fn accepts(kind: &postgres_types::Type) -> bool {
        <DateTime<Utc> as postgres_types::ToSql>::accepts(kind)
    }

    postgres_types::to_sql_checked!();
}

#[cfg(feature = "sql")]
impl<'a> postgres_types::FromSql<'a> for Timestamp {
    fn from_sql(
        kind: &postgres_types::Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        DateTime::<Utc>::from_sql(kind, raw).map(Timestamp)
    }

    fn accepts(kind: &postgres_types::Type) -> bool {
        <DateTime<Utc> as postgres_types::FromSql>::accepts(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_milliseconds_and_a_z() {
        let at: Timestamp = serde_json::from_str(r#""2026-03-01T13:00:00+01:00""#).expect("a time");
        let text = serde_json::to_string(&at).expect("a string");
        assert_eq!(text, r#""2026-03-01T12:00:00.000Z""#);
    }
}
