//! Lines for the terminal. `println!` panics on a closed pipe (`make run | head`), and a panic
//! would end the cluster.

use std::{
    fmt::Display,
    io::{Write, stderr, stdout},
};

/// Prints a line to standard output.
pub fn say(line: impl Display) {
    let _ = writeln!(stdout(), "{line}");
}

/// Prints a line to standard error.
pub fn warn(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// A frame of asterisks around `headline` and `reason`, for something that must not be overlooked.
pub fn notice(headline: &str, reason: &str) -> String {
    let line = "*".repeat(76);
    let reason = reason.replace('\n', "\n  *  ");
    format!("\n  {line}\n  *  {headline}:\n  *  {reason}\n  {line}\n")
}
