//! What wraps every success: `{"data": ...}` and pages of lists.

use serde::{Deserialize, Serialize};

/// `{"data": ...}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Data<T> {
    /// The answer itself.
    pub data: T,
}

/// A page of a list: `{"data": [...], "next_cursor": ...}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct List<T> {
    /// The items.
    pub data: Vec<T>,
    /// Where the next page starts; null at the end.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub next_cursor: Option<String>,
}

/// The query of a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PageQuery {
    /// Items of a page, 1 to 100; 50 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100, default = 50))]
    pub limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
