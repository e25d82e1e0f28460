//! Extractors that refuse with `VALIDATION_ERROR` and nothing else.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Request},
    http::{HeaderMap, header, request::Parts},
};
use bytes::{Bytes, BytesMut};
use hyper::body::Body as _;
use serde::de::DeserializeOwned;

use super::{
    json,
    paced::{PacedBody, closing},
};
use crate::auth::Reverify;
use crate::{
    error::{Code, Error, Result},
    limits::{
        buffers::{ByteAccount, FREE_BYTES},
        quotas::MAX_BODY_BYTES,
    },
};

/// Reads the JSON body of `parts`, at most `max_bytes` bytes, and checks the credential again if
/// the body was late. Errors: `too_large`, before the body is read if it declares its length; 408
/// if it is slow; those of the credential; 429 or 503 if the caller or the node holds too many
/// bytes.
pub async fn read(parts: &Parts, body: Body, max_bytes: usize, too_large: Code) -> Result<Bytes> {
    must_be_json(&parts.headers)?;
    let account = parts.extensions.get::<ByteAccount>();
    let (bytes, waited) = gather(body, max_bytes, too_large, account).await?;
    match parts.extensions.get::<Arc<dyn Reverify>>() {
        Some(credential) if waited => credential.reverify().await?,
        _ => {}
    }
    Ok(bytes)
}

/// Reads the whole body. The flag says whether any of it was still to come.
async fn gather(
    body: Body,
    max_bytes: usize,
    too_large: Code,
    account: Option<&ByteAccount>,
) -> Result<(Bytes, bool)> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > max_bytes {
        return Err(closing(too_large));
    }
    let mut body = PacedBody::new(body);
    // The declared length is only a claim, so it reserves little memory.
    let mut bytes = BytesMut::with_capacity(declared.min(64 * 1024));
    let mut permit = account.map(|account| account.take(0)).transpose()?;
    while let Some(data) = body.next().await? {
        if bytes.len() + data.len() > max_bytes {
            return Err(closing(too_large));
        }
        bytes.extend_from_slice(&data);
        if let Some(permit) = &mut permit
            && bytes.len() > FREE_BYTES
        {
            permit.grow(bytes.len() - permit.bytes())?;
        }
    }
    let bytes = bytes.freeze();
    let held = permit.filter(|permit| permit.bytes() > 0);
    let bytes = held.map_or(bytes.clone(), |held| held.guard(bytes));
    Ok((bytes, body.has_waited()))
}

/// Refuses a wrong `Content-Type`. A body without any is read as JSON.
fn must_be_json(headers: &HeaderMap) -> Result<()> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let kind = kind
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if kind.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Error::field(
            "",
            "content_type",
            "the body must be application/json",
        ))
    }
}

/// A JSON body of at most 64 KB, or of `MAX_BYTES` bytes, in the shape `T`.
pub struct Json<T, const MAX_BYTES: usize = MAX_BODY_BYTES>(pub T);

impl<T: DeserializeOwned, S: Send + Sync, const MAX_BYTES: usize> FromRequest<S>
    for Json<T, MAX_BYTES>
{
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts, body, MAX_BYTES, Code::PayloadTooLarge).await?;
        json::parse(&bytes).map(Json)
    }
}

/// A JSON body that may be left out, else like [`Json`].
pub struct JsonOrNothing<T>(pub T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for JsonOrNothing<T> {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts, body, MAX_BODY_BYTES, Code::PayloadTooLarge).await?;
        if bytes.is_empty() {
            Ok(JsonOrNothing(T::default()))
        } else {
            json::parse(&bytes).map(JsonOrNothing)
        }
    }
}

/// The variables of the path. A text that is no id of its kind names nothing: 404.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(value)| Path(value))
            .map_err(|_| Code::NotFound.into())
    }
}

/// The query as `T`.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        query
            .map(|axum::extract::Query(value)| Query(value))
            .map_err(|error| {
                let text = error.body_text();
                let text = text.rsplit("query string: ").next().unwrap_or_default();
                let (path, message) = text.split_once(": ").unwrap_or(("", text));
                Error::field(path, "query", message.rsplit('|').next().unwrap_or(message))
            })
    }
}
