//! What went wrong, in words for the person at the terminal.

use std::fmt;

/// Something that keeps the dev cluster from going on. Its text is a whole message, meant to be read by a person.
#[derive(Debug)]
pub struct DevError(String);

/// A result whose error is told to a person.
pub type Result<T, E = DevError> = std::result::Result<T, E>;

impl DevError {
    /// Trouble told by `message`.
    pub fn new(message: impl Into<String>) -> Self {
        DevError(message.into())
    }
}

impl fmt::Display for DevError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl std::error::Error for DevError {}

/// Turns an error into [`DevError`] by saying what was being done.
pub trait Context<T> {
    /// `"could not <what>: <error>"`.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| DevError(format!("could not {}: {error}", what())))
    }
}
