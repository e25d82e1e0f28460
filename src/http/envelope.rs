//! The success half of the envelope.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;

#[derive(Serialize)]
struct Envelope<T> {
    data: T,
}

/// 200 `{data}`.
pub struct Data<T>(pub T);

impl<T: Serialize> IntoResponse for Data<T> {
    fn into_response(self) -> Response {
        axum::Json(Envelope { data: self.0 }).into_response()
    }
}

/// 201 `{data}`.
pub struct Created<T>(pub T);

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, Data(self.0)).into_response()
    }
}

/// 200 `{data: [...], next_cursor}`.
#[derive(Serialize)]
pub struct List<T> {
    /// The items of the page.
    pub data: Vec<T>,
    /// Where the next page starts; null at the end.
    pub next_cursor: Option<String>,
}

impl<T> List<T> {
    /// Maps the items of the page.
    pub fn map<U>(self, shape: impl FnMut(T) -> U) -> List<U> {
        List {
            data: self.data.into_iter().map(shape).collect(),
            next_cursor: self.next_cursor,
        }
    }
}

impl<T: Serialize> IntoResponse for List<T> {
    fn into_response(self) -> Response {
        axum::Json(self).into_response()
    }
}
