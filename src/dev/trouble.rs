//! What went wrong, in words for the person at the terminal.

use std::fmt;

/// Something that keeps the dev cluster from going on. Its text is a whole message, meant to be read by a person.
#[derive(Debug)]
pub struct Trouble(String);

/// A result whose error is told to a person.
pub type Result<T, E = Trouble> = std::result::Result<T, E>;

impl Trouble {
    /// Trouble told by `message`.
    pub fn new(message: impl Into<String>) -> Self {
        Trouble(message.into())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl std::error::Error for Trouble {}

/// Turns an error into [`Trouble`] by saying what was being done.
pub trait Doing<T> {
    /// `"could not <what>: <error>"`.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Trouble(format!("could not {}: {error}", what())))
    }
}
