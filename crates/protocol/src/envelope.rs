//! The envelope of every success: `{"data": ...}` and pages of lists.

use serde::{Deserialize, Serialize};

/// `{"data": ...}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Data<T> {
    /// The content of the answer.
    pub data: T,
}

/// A page of a list: `{"data": [...], "next_cursor": ...}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct List<T> {
    /// The items.
    pub data: Vec<T>,
    /// The start of the next page; null at the end.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub next_cursor: Option<String>,
}

/// The query of a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PageQuery {
    /// The number of items of a page, 1 to 100; 50 if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100, default = 50))]
    pub limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
