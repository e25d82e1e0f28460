//! THE CLOSE CODES of `/ws`, which are the protocol's.

pub use blindpipe_protocol::close::Close;
