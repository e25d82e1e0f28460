//! Makes a new database cluster, all or nothing.

use std::{fs, path::Path};

use super::{Durability, ERASING_ROLE, Passwords, PostgresServer, SERVING_ROLE};
use crate::{
    error::{Context, DevError, Result},
    files::{make_folder, write_secret},
    process::Process,
    random,
};

impl PostgresServer {
    /// Makes the database cluster, or checks that an existing one is usable.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let secrets = self.folder.join("passwords");
        let version = fs::read_to_string(self.data().join("PG_VERSION"));
        let Ok(version) = version else {
            self.passwords = Passwords {
                owner: random::base62(32),
                superuser: random::base62(32),
                serving: random::base62(32),
                erasing: random::base62(32),
            };
            self.initialise()?;
            self.passwords.write(&secrets)?;
            // The rename comes last, so that a cluster always has its passwords and is never half
            // made.
            let _ = fs::remove_dir_all(self.data());
            return fs::rename(self.folder.join("data.new"), self.data())
                .with_context(|| "finish a new cluster".into());
        };
        let unusable = |why: String| {
            DevError::new(format!(
                "{} {why}; `make clean-dev` removes it (and all its data)",
                self.data().display()
            ))
        };
        if version.trim().parse() != Ok(self.tools.major) {
            let why = format!(
                "was made by PostgreSQL {}, but {} is what was found",
                version.trim(),
                self.tools.version
            );
            return Err(unusable(why));
        }
        let text = fs::read_to_string(&secrets)
            .map_err(|error| unusable(format!("has lost its passwords ({error})")))?;
        let read = Passwords::read(&text).ok_or_else(|| unusable("has no passwords".into()))?;
        let is_complete = !read.serving.is_empty() && !read.erasing.is_empty();
        self.passwords = read;
        if is_complete {
            return Ok(());
        }
        // The cluster is older than a role. The passwords are written last, so that an interrupted
        // start begins anew.
        self.passwords.serving = random::base62(32);
        self.passwords.erasing = random::base62(32);
        self.run_single_user(&self.data(), &self.lesser_roles())?;
        self.passwords.write(&secrets)
    }

    fn initialise(&self) -> Result<()> {
        let first = self.init_db("C.UTF-8");
        // Not every C library has that locale.
        first.or_else(|_| self.init_db("C"))?;
        let sql = format!(
            "create role blindpipe login createdb password '{}';\n\
             grant pg_monitor to blindpipe;\n\
             create database blindpipe owner blindpipe;\n{}",
            self.passwords.owner,
            self.lesser_roles()
        );
        let fresh = self.folder.join("data.new");
        self.run_single_user(&fresh, &sql)?;
        if self.durability == Durability::Durable {
            let mut sync = self.command("initdb");
            sync.arg("--sync-only").arg("-D").arg(fresh);
            Process::output(sync)?;
        }
        Ok(())
    }

    /// SQL that makes [`SERVING_ROLE`] and [`ERASING_ROLE`], or gives them their passwords. The owner
    /// is a member of the first, so that a test may cut the connections of nodes.
    fn lesser_roles(&self) -> String {
        let roles = [
            (SERVING_ROLE, &self.passwords.serving),
            (ERASING_ROLE, &self.passwords.erasing),
        ];
        let made = roles.map(|(role, password)| {
            format!(
                "do $$ begin if not exists (select from pg_roles where rolname = '{role}') \
                 then create role {role} login; end if; end $$;\n\
                 alter role {role} password '{password}';\n"
            )
        });
        format!("{}grant {SERVING_ROLE} to blindpipe;\n", made.concat())
    }

    /// Runs statements, a line each. No server runs on `data`, so the passwords appear in no
    /// network and no process list.
    fn run_single_user(&self, data: &Path, sql: &str) -> Result<()> {
        let mut single = self.command("postgres");
        single.arg("--single").arg("-D").arg(data);
        single.args([
            "-c",
            "exit_on_error=on",
            "-c",
            "log_statement=none",
            "-c",
            "log_min_error_statement=panic",
            "-c",
            "fsync=off",
        ]);
        single.arg("postgres");
        let output = Process::output_with_input(single, sql)?;
        if !output.status.success() {
            return Err(DevError::new(format!(
                "could not make the database:\n{}",
                String::from_utf8_lossy(&output.stderr)
            )));
        }
        Ok(())
    }

    fn init_db(&self, locale: &str) -> Result<()> {
        let fresh = self.folder.join("data.new");
        let password_file = self.folder.join("initdb-password");
        let _ = fs::remove_dir_all(&fresh);
        make_folder(&fresh, 0o700)?;
        self.account.take_ownership(&fresh)?;
        write_secret(&password_file, &self.passwords.superuser)?;
        self.account.take_ownership(&password_file)?;
        let mut init = self.command("initdb");
        init.arg("-D")
            .arg(&fresh)
            .arg(format!("--locale={locale}"))
            .arg("--pwfile")
            .arg(&password_file);
        init.args([
            "--username=postgres",
            "--encoding=UTF8",
            "--locale-provider=libc",
            "--auth=scram-sha-256",
            "--no-sync",
        ]);
        let output = Process::output(init);
        let _ = fs::remove_file(&password_file);
        let output = output?;
        if output.status.success() {
            return Ok(());
        }
        Err(DevError::new(format!(
            "initdb failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        )))
    }
}

impl Passwords {
    /// Reads the file of [`write`](Self::write). An older file lacks the last lines.
    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::to_owned);
        Some(Passwords {
            owner: lines.next()?,
            superuser: lines.next()?,
            serving: lines.next().unwrap_or_default(),
            erasing: lines.next().unwrap_or_default(),
        })
    }

    fn write(&self, file: &Path) -> Result<()> {
        let Passwords {
            owner,
            superuser,
            serving,
            erasing,
        } = self;
        let lines = format!("{owner}\n{superuser}\n{serving}\n{erasing}\n");
        write_secret(file, &lines)
    }
}
