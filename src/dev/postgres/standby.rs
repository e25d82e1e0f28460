//! A server that follows another, and takes its place.

use std::fs;

use super::PostgresServer;
use crate::dev::{
    place::make_folder,
    process::Process,
    trouble::{DevError, Result},
};

impl PostgresServer {
    /// Starts a server that gets what is committed here a moment later (an asynchronous standby). Passwords are the
    /// same.
    pub fn follower(&self) -> Result<Self> {
        let mut follower = PostgresServer {
            tools: self.tools.clone(),
            account: self.account.clone(),
            profile: self.profile,
            folder: self.folder.with_extension("follower"),
            passwords: self.passwords.clone(),
            port: 0,
            process: None,
        };
        make_folder(&follower.folder, 0o711)?;
        follower.end_leftovers()?;
        let data = follower.data();
        let _ = fs::remove_dir_all(&data);
        make_folder(&data, 0o700)?;
        follower.account.give(&data)?;
        let mut backup = self.command("pg_basebackup");
        backup
            .args([
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
                "--pgdata",
            ])
            .arg(&data);
        backup
            .args(["--host=127.0.0.1", "--username=postgres", "--port"])
            .arg(self.port.to_string());
        backup.env("PGPASSWORD", &self.passwords.1);
        succeed(Process::output(backup)?)?;
        follower.launch_on_free_port()?;
        Ok(follower)
    }

    /// Ends its following: from now on it is a server of its own, on a timeline of its own.
    pub fn promote(&self) -> Result<()> {
        let mut promote = self.command("pg_ctl");
        promote
            .args(["promote", "--wait", "--pgdata"])
            .arg(self.data());
        succeed(Process::output(promote)?)
    }
}

fn succeed(output: std::process::Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    Err(DevError::new(format!(
        "a standby failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    )))
}
