//! THE CLOSE CODES of `/ws`, from the protocol.

pub use blindpipe_protocol::close::Close;
