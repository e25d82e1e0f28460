//! Completions and man pages, from the table of commands.

use std::{
    fs,
    io::{Write, stdout},
    path::Path,
};

use crate::{cli, failure::Result, output::Output};

pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    // It panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "bp", &mut script);
    Ok(stdout().lock().write_all(&script)?)
}

/// A page for `bp` and one for each command.
pub fn pages(folder: &Path, output: &Output) -> Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(cli::command(), folder)?;
    output.note(&format!("written to {}", folder.display()));
    Ok(())
}
