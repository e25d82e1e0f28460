//! JSON that the service passes on without reading it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A JSON value that keeps its bytes: nothing is reordered, no number is rewritten.
///
/// It can be read by `serde_json` only.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(pub Box<RawValue>);

impl RawJson {
    /// The value as it is written.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// A value out of its text, which must be JSON.
    pub fn parse(text: String) -> serde_json::Result<Self> {
        RawValue::from_string(text).map(RawJson)
    }

    /// A value written by `serde_json`.
    pub fn of(value: &(impl Serialize + ?Sized)) -> serde_json::Result<Self> {
        serde_json::value::to_raw_value(value).map(RawJson)
    }
}

impl PartialEq for RawJson {
    /// Equal bytes, not equal values.
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for RawJson {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::SchemaType::AnyValue)
            .description(Some("Any JSON value. It keeps its bytes."))
            .into()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for RawJson {
    fn name() -> std::borrow::Cow<'static, str> {
        "RawJson".into()
    }
}
