//! JSON that the service passes on without reading it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A JSON value that keeps its bytes: order and numbers stay as written.
///
/// Only `serde_json` can read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(pub Box<RawValue>);

impl RawJson {
    /// The text of the value.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Parses a value. Fails if the text is no JSON.
    pub fn parse(text: String) -> serde_json::Result<Self> {
        RawValue::from_string(text).map(RawJson)
    }

    /// A value written by `serde_json`.
    pub fn of(value: &(impl Serialize + ?Sized)) -> serde_json::Result<Self> {
        serde_json::value::to_raw_value(value).map(RawJson)
    }
}

impl PartialEq for RawJson {
    /// Compares bytes, not values.
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
