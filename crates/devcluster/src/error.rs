//! The only error type: a message for the person at the terminal.

use std::fmt;

/// The reason that the dev cluster cannot go on. Its text is a whole message.
#[derive(Debug)]
pub struct DevError(String);

pub type Result<T, E = DevError> = std::result::Result<T, E>;

impl DevError {
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

/// Turns any error into a [`DevError`].
pub trait Context<T> {
    /// The message becomes `could not <action>: <error>`.
    fn with_context(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn with_context(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| DevError(format!("could not {}: {error}", action())))
    }
}
