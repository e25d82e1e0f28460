//! Errors of the service and of the connection to it. Nobody needs to parse text.

use std::time::Duration;

use blindpipe_protocol::errors::{Code, ErrorBody};
use serde_json::{Map, Value};

/// The outcome of whatever can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Another library's error.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The innermost cause in words. A certificate that is not trusted is the first mistake with every
/// private authority, so it is named.
fn why(cause: Option<&(dyn std::error::Error + Send + Sync + 'static)>) -> String {
    let Some(cause) = cause else {
        return String::new();
    };
    let mut innermost: &dyn std::error::Error = cause;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string();
    if text.contains("certificate") {
        return format!(
            ": the server's certificate is not trusted; BLINDPIPE_CA or Server::with_authority \
             names another authority: {text}"
        );
    }
    format!(": {text}")
}

/// A failure of a client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The service refused.
    #[error(transparent)]
    Api(Box<ApiError>),
    /// No answer came. For a send with an id, a repeat is safe.
    #[error("the connection was lost{}", why(cause.as_deref()))]
    ConnectionLost {
        /// The connection's fault; none if an answer was cut off.
        #[source]
        cause: Option<Cause>,
    },
    /// The client was closed, or the service ended it for good.
    #[error("closed")]
    Closed {
        /// The close code of the socket, if one said so.
        close_code: Option<u16>,
    },
    /// An earlier message has this id, and it is not one's own.
    #[error("another message has this id")]
    IdConflict,
    /// There is no secret to seal with, and none can be made here.
    #[error("no key to seal with: {0}")]
    KeyUnavailable(&'static str),
    /// The device's own table and the person allow no such tool call: nothing ran.
    #[error("nobody approved this tool request")]
    NotApproved,
    /// Something does not open, or is not sealed.
    #[error("{0}")]
    Decrypt(#[from] blindpipe_e2ee::Error),
    /// The call does not fit.
    #[error("{0}")]
    Usage(&'static str),
    /// The store of this client failed.
    #[error("the store failed")]
    Store(#[source] std::io::Error),
    /// A handler's own error.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// A handler's own error.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    pub(crate) const fn closed() -> Self {
        Self::Closed { close_code: None }
    }

    pub(crate) const fn lost() -> Self {
        Self::ConnectionLost { cause: None }
    }

    /// A connection that was lost by `cause`.
    pub(crate) fn lost_by(cause: impl Into<Cause>) -> Self {
        let cause = Some(cause.into());
        Self::ConnectionLost { cause }
    }

    /// The refusal of the service, if it is one.
    #[must_use]
    pub fn api(&self) -> Option<&ApiError> {
        match self {
            Self::Api(error) => Some(error),
            _ => None,
        }
    }

    /// The code of the service's refusal, if this crate knows it.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.api().and_then(|error| error.code)
    }

    /// Whether the same request may succeed later without a change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Api(error) => error.is_retryable(),
            Self::ConnectionLost { .. } => true,
            // A handler may have wrapped it.
            Self::Other(error) => error.downcast_ref().is_some_and(Self::is_retryable),
            _ => false,
        }
    }

    /// The kind of the error, for logs: a text of a handler may quote a message.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Api(error) => error.code.map_or("API", Code::wire),
            Self::ConnectionLost { .. } => "CONNECTION_LOST",
            Self::Closed { .. } => "CLOSED",
            Self::IdConflict => "ID_CONFLICT",
            Self::KeyUnavailable(_) => "KEY_UNAVAILABLE",
            Self::NotApproved => "NOT_APPROVED",
            Self::Decrypt(error) => error.reason(),
            Self::Usage(_) => "USAGE",
            Self::Store(_) => "STORE",
            Self::Other(_) => "OTHER",
        }
    }
}

/// A refusal of the service.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message} ({name}, {status})")]
pub struct ApiError {
    /// The code, if this crate knows it.
    pub code: Option<Code>,
    /// The code as the service names it.
    pub name: String,
    /// HTTP status; 0 for the refusal of a frame.
    pub status: u16,
    /// English text.
    pub message: String,
    /// The parameters of the code.
    pub params: Map<String, Value>,
    /// Names the request in the server's log.
    pub request_id: Option<String>,
    retryable: bool,
}

impl ApiError {
    pub(crate) fn new(status: u16, body: ErrorBody, request_id: Option<String>) -> Self {
        Self {
            code: body.known(),
            name: body.code,
            status,
            message: body.message,
            params: body.params.extra,
            request_id,
            retryable: body.params.retryable,
        }
    }

    /// A refusal without the service's envelope, say of something on the way.
    pub(crate) fn bare(status: u16) -> Self {
        Self {
            code: None,
            name: format!("HTTP_{status}"),
            status,
            message: "the server refused".to_owned(),
            params: Map::new(),
            request_id: None,
            retryable: matches!(status, 429 | 502..=504),
        }
    }

    /// Whether the same request may succeed later without a change.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// The wait that the service asks for.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let ms = self.params.get("retry_after_ms")?.as_u64()?;
        Some(Duration::from_millis(ms))
    }
}

impl From<ApiError> for Error {
    fn from(error: ApiError) -> Self {
        Self::Api(Box::new(error))
    }
}
