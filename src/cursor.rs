//! The cursor, a place in an inbox. Clients use the same string on sockets, polls and webhooks.
//!
//! Why: ADR 6.

use blindpipe_protocol::cursor::BadCursor;
pub use blindpipe_protocol::cursor::Cursor;

use crate::error::Error;

impl From<BadCursor> for Error {
    fn from(_: BadCursor) -> Self {
        Error::field("cursor", "format", "is no cursor")
    }
}
