//! A standby: a server that follows another and can take its place.

use std::{fs, process::Output};

use super::PostgresServer;
use crate::{
    error::{Context, DevError, Result},
    files::make_folder,
    process::Process,
};

impl PostgresServer {
    /// Starts a standby of this server. It has the same passwords. No commit waits for it, unless
    /// `synchronous_standby_names` of this server says so.
    pub fn standby(&self) -> Result<Self> {
        let mut standby = PostgresServer {
            tools: self.tools.clone(),
            account: self.account.clone(),
            durability: self.durability,
            folder: self.folder.with_extension("standby"),
            passwords: self.passwords.clone(),
            port: 0,
            process: None,
        };
        make_folder(&standby.folder, 0o711)?;
        standby.end_leftovers()?;
        let data = standby.data();
        let _ = fs::remove_dir_all(&data);
        make_folder(&data, 0o700)?;
        standby.account.take_ownership(&data)?;
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
        backup.env("PGPASSWORD", &self.passwords.superuser);
        check(Process::output(backup)?)?;
        standby.launch_on_free_port()?;
        Ok(standby)
    }

    /// Starts this server again, on its old port, as a standby that follows nobody.
    pub fn demote(&mut self) -> Result<()> {
        self.stop();
        let signal = self.data().join("standby.signal");
        fs::write(&signal, "").with_context(|| format!("write {}", signal.display()))?;
        self.account.take_ownership(&signal)?;
        self.restart()
    }

    /// Promotes this standby to a primary, on a timeline of its own.
    pub fn promote(&self) -> Result<()> {
        let mut promote = self.command("pg_ctl");
        promote
            .args(["promote", "--wait", "--pgdata"])
            .arg(self.data());
        check(Process::output(promote)?)
    }
}

fn check(output: Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    Err(DevError::new(format!(
        "a standby failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    )))
}
