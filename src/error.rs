//! THE ERRORS: everything a caller can be refused with, and the envelope that says so.
//!
//! Two kinds of failure: a [`Code`] is the caller's (answered, logged at debug); a broken part is ours (logged once,
//! where the answer is made, and shown as 500 or 503).

use std::{error::Error as StdError, fmt, time::Duration};

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use crate::catalogue;

catalogue! {
    /// Everything a caller can be refused with: (HTTP status, wire code, fallback message).
    pub enum Code: (u16, &'static str, &'static str) {
        ValidationError       = (400, "VALIDATION_ERROR",       "The request is not valid.");
        CodeInvalid           = (400, "CODE_INVALID",           "The code is wrong, used or expired.");
        ChallengeExpired      = (400, "CHALLENGE_EXPIRED",      "The challenge is unknown, used or expired; begin again.");
        Unauthorized          = (401, "UNAUTHORIZED",           "The access token is missing, invalid or expired.");
        TokenExpired          = (401, "TOKEN_EXPIRED",          "The refresh token is expired or revoked; log in again.");
        InvalidCredentials    = (401, "INVALID_CREDENTIALS",    "The e-mail or the password is wrong.");
        PasskeyInvalid        = (401, "PASSKEY_INVALID",        "The passkey or its answer is not valid.");
        AgentTokenInvalid     = (401, "AGENT_TOKEN_INVALID",    "The agent token is invalid or revoked.");
        TurnstileFailed       = (403, "TURNSTILE_FAILED",       "The human verification failed.");
        Forbidden             = (403, "FORBIDDEN",              "The caller may not do this.");
        TlsRequired           = (403, "TLS_REQUIRED",           "Only HTTPS is served here.");
        OriginNotAllowed      = (403, "ORIGIN_NOT_ALLOWED",     "This origin may not call this endpoint.");
        ReauthRequired        = (403, "REAUTH_REQUIRED",        "This needs a recent login; log in again.");
        AgentLimitExceeded    = (403, "AGENT_LIMIT_EXCEEDED",   "The user already has as many agents as allowed.");
        NotConversationMember = (403, "NOT_CONVERSATION_MEMBER", "The sender is not a member of the conversation.");
        RelationRequired      = (403, "RELATION_REQUIRED",      "The user has no relation with this agent.");
        RelationRevoked       = (403, "RELATION_REVOKED",       "The user has ended the relation with this agent.");
        AgentLoopDetected     = (403, "AGENT_LOOP_DETECTED",    "Agents have answered each other too many times without a human.");
        NotFound              = (404, "NOT_FOUND",              "There is nothing here.");
        AgentNotRegistered    = (404, "AGENT_NOT_REGISTERED",   "The agent does not exist.");
        MethodNotAllowed      = (405, "METHOD_NOT_ALLOWED",     "This method is not served here.");
        RequestTimeout        = (408, "REQUEST_TIMEOUT",        "The request arrived too slowly.");
        EmailTaken            = (409, "EMAIL_TAKEN",            "An account with this e-mail exists.");
        DeviceMismatch        = (409, "DEVICE_MISMATCH",        "The session belongs to another device.");
        VersionMismatch       = (409, "VERSION_MISMATCH",       "It was changed meanwhile; read it again.");
        RecipientsMismatch    = (409, "RECIPIENTS_MISMATCH",    "The wrapped keys do not fit the members' current devices.");
        AgentKeysMismatch     = (409, "AGENT_KEYS_MISMATCH",    "The private key held does not match the registered public key.");
        IdempotencyConflict   = (409, "IDEMPOTENCY_CONFLICT",   "This id was used for another message within 24 hours.");
        CursorExpired         = (409, "CURSOR_EXPIRED",         "The cursor is older than what is kept, or of another epoch.");
        MessageTooLarge       = (413, "MESSAGE_TOO_LARGE",      "A message may have 1 MB.");
        WebhookPayloadTooLarge = (413, "WEBHOOK_PAYLOAD_TOO_LARGE", "An agent's message may have 1 MB.");
        ManifestTooLarge      = (413, "MANIFEST_TOO_LARGE",     "A manifest may have 128 KB.");
        PayloadTooLarge       = (413, "PAYLOAD_TOO_LARGE",      "The request body is too large.");
        AccountLocked         = (423, "ACCOUNT_LOCKED",         "Too many failed logins; try again later.");
        RateLimited           = (429, "RATE_LIMITED",           "Too many requests; try again after the wait.");
        InternalError         = (500, "INTERNAL_ERROR",         "Something broke on our side.");
        NotAvailableInV1      = (501, "NOT_AVAILABLE_IN_V1",    "Planned, and not part of V1.");
        ServiceUnavailable    = (503, "SERVICE_UNAVAILABLE",    "The service cannot answer now; try again shortly.");
    }
}

impl Code {
    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The stable identifier on the wire.
    pub fn wire(self) -> &'static str {
        self.row().1
    }

    /// Whether the same request may succeed later without being changed.
    pub fn retryable(self) -> bool {
        matches!(
            self,
            Code::RateLimited
                | Code::ServiceUnavailable
                | Code::AccountLocked
                | Code::RequestTimeout
        )
    }
}

/// A refusal or a failure, on its way to the caller.
pub struct Error {
    code: Code,
    params: Map<String, Value>,
    retry_after: Option<Duration>,
    headers: Vec<(&'static str, String)>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

/// What handlers, stores and rules return.
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
    /// One field of the request is wrong: `path` into the body or the query, the `rule` it breaks, and why.
    pub fn field(
        path: impl Into<String>,
        rule: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let field = json!({ "path": path.into(), "rule": rule.into(), "message": message.into() });
        Error::from(Code::ValidationError).with("fields", json!([field]))
    }

    /// A part of ours broke: 500, or 503 where `code` says so.
    pub fn internal(code: Code, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error {
            cause: Some(cause.into()),
            ..Error::from(code)
        }
    }

    /// A dependency is away or we are overloaded: 503, come back in a second.
    pub fn unavailable(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::internal(Code::ServiceUnavailable, cause).retry_after(Duration::from_secs(1))
    }

    /// Adds one entry of `params`.
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

    /// What the caller is told.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Whether it is ours: the caller asked for nothing wrong.
    pub fn is_ours(&self) -> bool {
        self.code.status().is_server_error()
    }

    /// Whether Postgres gave up this transaction for another one (deadlock, serialisation): it may be tried again.
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

    /// Whether a statement took too long, or a lock was not to be had in time.
    pub fn is_out_of_time(&self) -> bool {
        use tokio_postgres::error::SqlState;
        let state = self.database().and_then(tokio_postgres::Error::code);
        matches!(
            state,
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::QUERY_CANCELED)
        )
    }

    /// The same cause, as a 503: for outcomes that are not known.
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

    /// The object under `error` in the envelope, for answers and for frames.
    pub fn body(&self) -> Value {
        let (_, wire, message) = self.code.row();
        let mut params = self.params.clone();
        params.insert("retryable".to_owned(), self.code.retryable().into());
        json!({
            "code": wire,
            "message": message,
            "i18n_key": format!("errors.{}", wire.to_ascii_lowercase()),
            "params": params,
        })
    }

    /// Writes what broke to the log, where no answer will take it to the door.
    pub fn log(&self) {
        if let Some(cause) = &self.cause {
            tracing::error!(code = self.code.wire(), cause = %Chain(cause.as_ref()), "a part of ours failed");
        } else {
            tracing::debug!(code = self.code.wire(), "refused");
        }
    }
}

/// An error with its sources, on one line. Never holds request data: causes come from drivers only.
struct Chain<'a>(&'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(source) = next {
            match source.downcast_ref::<tokio_postgres::error::DbError>() {
                // Its details would quote the row.
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

/// What broke, on its way from the answer to the one log line that the door writes about it.
#[derive(Clone)]
pub struct Cause(pub std::sync::Arc<str>);

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (
            self.code.status(),
            axum::Json(json!({ "error": self.body() })),
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

/// Whether Postgres cannot answer now, rather than having been asked something wrong.
pub fn database_is_away(error: &tokio_postgres::Error) -> bool {
    match error.code().map(|state| state.code()) {
        // Connection failures, resources used up, operator intervention (also statement_timeout), I/O, lock waits.
        Some(state) => {
            ["08", "53", "57", "58", "55", "40"]
                .iter()
                .any(|class| state.starts_with(class))
                || state == "25006"
        }
        None => {
            error.is_closed()
                || error
                    .source()
                    .is_some_and(|source| source.is::<std::io::Error>())
        }
    }
}

/// Turns the violation of a named constraint into the caller's error: the database enforces, the code translates.
pub trait OnConstraint<T> {
    /// `Code` if `constraint` was violated, else whatever the failure is.
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
