//! THE ERRORS: every refusal of a caller, and the envelope that carries it. The catalogue of the
//! codes is `crates/protocol/src/errors.rs`.
//!
//! There are two kinds of failure. A [`Code`] is the caller's fault: it is answered, and logged at
//! debug. A broken part is the node's fault: it is logged once, where the answer is made, and
//! answered with 500 or 503.

use std::{error::Error as StdError, fmt, time::Duration};

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

pub use blindpipe_protocol::errors::Code;
use blindpipe_protocol::errors::{ErrorBody, ErrorEnvelope, FieldFault};

/// A refusal or a failure, on its way to the caller.
pub struct Error {
    code: Code,
    params: Map<String, Value>,
    retry_after: Option<Duration>,
    headers: Vec<(&'static str, String)>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

/// The result of handlers, stores and rules.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<Code> for Error {
    fn from(code: Code) -> Self {
        Error {
            code,
            params: Map::new(),
            retry_after: None,
            headers: Vec::new(),
            cause: None,
        }
    }
}

impl Error {
    /// A field of the request is wrong. `path` leads into the body or the query, `rule` is the
    /// broken rule, and `message` explains it.
    pub fn field(
        path: impl Into<String>,
        rule: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let fault = FieldFault {
            path: path.into(),
            rule: rule.into(),
            message: message.into(),
        };
        Error::from(Code::ValidationError).with("fields", json!([fault]))
    }

    /// A part of the node broke: 500, or 503 where `code` says so.
    pub fn internal(code: Code, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error {
            cause: Some(cause.into()),
            ..Error::from(code)
        }
    }

    /// A dependency is away or the node is overloaded: 503 with `Retry-After: 1`.
    pub fn unavailable(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::internal(Code::ServiceUnavailable, cause).retry_after(Duration::from_secs(1))
    }

    /// The wait after which a repeat may succeed, if the refusal names one.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The node refuses work that it has no place for: 503 with `Retry-After: 1`. Nothing is
    /// broken, so nothing is logged as an error.
    pub fn full() -> Self {
        Error::from(Code::ServiceUnavailable).retry_after(Duration::from_secs(1))
    }

    /// The caller does something too often or too much of it at once: 429. `limit` is what it may
    /// do, and `scope` the name of the limit.
    pub fn too_many(limit: impl Into<Value>, scope: impl Into<Value>, wait: Duration) -> Self {
        let ms = wait.as_micros().div_ceil(1000).max(1);
        let ms = u64::try_from(ms).unwrap_or(u64::MAX);
        Error::from(Code::RateLimited)
            .with("retry_after_ms", ms)
            .with("limit", limit)
            .with("scope", scope)
            .retry_after(Duration::from_millis(ms))
    }

    /// Adds an entry to `params`.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// Sets `Retry-After` (whole seconds, rounded up, at least 1).
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Adds a header to the answer.
    pub fn header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The code of the answer.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Whether the node is at fault, not the caller.
    pub fn is_ours(&self) -> bool {
        self.status().is_server_error()
    }

    /// Whether Postgres gave up this transaction for another (deadlock, serialisation). The caller
    /// may try it again.
    pub fn is_conflict(&self) -> bool {
        use tokio_postgres::error::SqlState;
        let state = self.database().and_then(tokio_postgres::Error::code);
        matches!(
            state,
            Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE)
        )
    }

    /// Whether the named constraint was violated.
    pub fn violates(&self, constraint: &str) -> bool {
        let violated = self
            .database()
            .and_then(|error| error.as_db_error()?.constraint());
        violated == Some(constraint)
    }

    /// Whether a statement took too long or a wait for a lock timed out.
    pub fn is_out_of_time(&self) -> bool {
        use tokio_postgres::error::SqlState;
        let state = self.database().and_then(tokio_postgres::Error::code);
        matches!(
            state,
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::QUERY_CANCELED)
        )
    }

    /// Keeps the cause and answers 503, for outcomes that are not known.
    pub fn into_unavailable(self) -> Self {
        let retry_after = Some(Duration::from_secs(1));
        Error {
            code: Code::ServiceUnavailable,
            retry_after,
            ..self
        }
    }

    fn database(&self) -> Option<&tokio_postgres::Error> {
        self.cause.as_ref()?.downcast_ref()
    }

    /// The HTTP status of the answer.
    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The object under `error` in the envelope, for answers and for frames.
    pub fn body(&self) -> ErrorBody {
        ErrorBody::new(self.code, self.params.clone())
    }

    /// Writes the failure of an `operation` to the log, with what the node does about it. Only
    /// where no answer carries the cause to the request's log line.
    pub fn log_in(&self, operation: &'static str, remedy: &'static str) {
        if let Some(cause) = &self.cause {
            let (code, cause) = (self.code.wire(), Chain(cause.as_ref()));
            tracing::error!(operation, code, %cause, remedy, "an operation failed");
        } else {
            tracing::debug!(operation, code = self.code.wire(), "refused");
        }
    }
}

/// An error with its sources, on one line. It never holds request data: causes come from drivers
/// only.
struct Chain<'a>(&'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(source) = next {
            match source.downcast_ref::<tokio_postgres::error::DbError>() {
                // The details of a database error would quote the row.
                Some(db) => {
                    let constraint = db.constraint().unwrap_or_default();
                    write!(to, ": {} {} {constraint}", db.code().code(), db.message())?;
                }
                None => write!(to, ": {source}")?,
            }
            next = source.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.code.wire())?;
        if let Some(cause) = &self.cause {
            write!(to, " ({})", Chain(cause.as_ref()))?;
        }
        Ok(())
    }
}

/// The cause of a failure, on its way from the answer to the request's log line.
#[derive(Clone)]
pub struct Cause(pub std::sync::Arc<str>);

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (
            self.status(),
            axum::Json(ErrorEnvelope { error: self.body() }),
        )
            .into_response();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_millis().div_ceil(1000).max(1);
            let seconds = HeaderValue::from(u64::try_from(seconds).unwrap_or(1));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
        }
        if let Some(cause) = self.cause {
            response
                .extensions_mut()
                .insert(Cause(Chain(cause.as_ref()).to_string().into()));
        }
        response
    }
}

impl From<deadpool_postgres::PoolError> for Error {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        match error {
            deadpool_postgres::PoolError::Backend(error) => error.into(),
            other => Error::unavailable(other),
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        if database_is_away(&error) {
            Error::unavailable(error)
        } else {
            Error::internal(Code::InternalError, error)
        }
    }
}

/// Whether Postgres cannot answer now. False if the statement itself is wrong.
pub fn database_is_away(error: &tokio_postgres::Error) -> bool {
    match error.code().map(|state| state.code()) {
        // Connection failures, exhausted resources, operator intervention (with statement_timeout),
        // I/O errors and lock waits.
        Some(state) => {
            ["08", "53", "57", "58", "55", "40"]
                .iter()
                .any(|class| state.starts_with(class))
                // A standby, and a transaction that Postgres ended while the node was paused.
                || matches!(state, "25006" | "25P03" | "25P04")
        }
        None => {
            error.is_closed()
                || error
                    .source()
                    .is_some_and(|source| source.is::<std::io::Error>())
        }
    }
}

/// Turns the violation of a named constraint into the caller's error. The database enforces, and
/// the code translates.
pub trait OnConstraint<T> {
    /// Replaces the failure by `code` if `constraint` was violated.
    fn on_constraint(self, constraint: &str, code: Code) -> Result<T>;
}

impl<T> OnConstraint<T> for Result<T> {
    fn on_constraint(self, constraint: &str, code: Code) -> Result<T> {
        self.map_err(|error| {
            if error.violates(constraint) {
                code.into()
            } else {
                error
            }
        })
    }
}
