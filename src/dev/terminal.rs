//! The lines the launcher prints. A closed pipe (`make run | head`) must not end the cluster in a panic, so write
//! errors are ignored.

use std::{
    fmt::Display,
    io::{Write, stderr, stdout},
};

/// Prints one line of the story.
pub fn say(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// Prints one line about something that went wrong.
pub fn warn(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}
