//! Questions at the terminal. A secret is read without an echo, from a file or a terminal and
//! never from arguments, which other processes see and shells remember.

use std::{
    fs,
    io::{self, BufRead, IsTerminal, Read, Write, stderr, stdin},
    path::Path,
};

use crate::failure::{Failure, Result};

pub fn is_terminal() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Asks for a line.
pub fn line(question: &str) -> Result<String> {
    need_terminal(question)?;
    write!(stderr(), "{question}: ")?;
    stderr().flush()?;
    let mut line = String::new();
    if stdin().lock().read_line(&mut line)? == 0 {
        return Err(Failure::failed("the terminal was closed"));
    }
    Ok(line.trim().to_owned())
}

/// Asks for something secret.
pub fn secret(question: &str) -> Result<String> {
    need_terminal(question)?;
    Ok(rpassword::prompt_password(format!("{question}: "))?)
}

/// Asks for a new secret, twice.
pub fn new_secret(question: &str) -> Result<String> {
    loop {
        let first = secret(question)?;
        if secret("Once more")? == first {
            return Ok(first);
        }
        writeln!(stderr(), "They differ.")?;
    }
}

/// Asks yes or no; only a yes is one.
pub fn confirm(question: &str) -> Result<bool> {
    Ok(matches!(
        &*line(&format!("{question} [y/N]"))?,
        "y" | "Y" | "yes"
    ))
}

fn need_terminal(question: &str) -> Result<()> {
    if is_terminal() {
        return Ok(());
    }
    let missing = format!("{question:?} is asked at a terminal, and there is none");
    Err(Failure::usage(missing).remedy("the option that names a file or a value; see --help"))
}

/// A secret from a file; `-` is standard input. The end of its line does not count.
pub fn secret_from(path: &Path) -> Result<String> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        stdin().read_line(&mut text)?;
    } else {
        let unread = |error: io::Error| Failure::usage(format!("{}: {error}", path.display()));
        fs::File::open(path)
            .and_then(|mut file| file.read_to_string(&mut text))
            .map_err(unread)?;
    }
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// A secret from a file if one is named, else from the terminal.
pub fn secret_of(path: Option<&Path>, question: &str) -> Result<String> {
    path.map_or_else(|| secret(question), secret_from)
}
