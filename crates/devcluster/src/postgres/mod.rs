//! A private PostgreSQL server.
//!
//! Each folder has a cluster on a free TCP port of 127.0.0.1, without Unix sockets. Role
//! `blindpipe` owns database `blindpipe` and may create databases, but is no superuser. Role
//! [`SERVING_ROLE`] is the nodes' own and owns nothing. So the server can do no more here than in
//! production. Role [`ERASING_ROLE`] erases. Role `postgres` is the superuser. All have random passwords, kept beside the data.

mod init;
mod memory;
mod standby;

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

pub use self::memory::remove_from_memory;
use crate::{
    account::Account,
    error::{Context, DevError, Result},
    files::{make_folder, open_log, short_hash},
    ports::free_port,
    process::{POLL_INTERVAL, Process, table},
    toolset::Toolset,
};

/// The search for a free port begins here. The machine's own server may want the standard port
/// later.
const FIRST_PORT: u16 = 15432;
/// The role that nodes serve with. It has the rights that a migration grants to it.
pub const SERVING_ROLE: &str = "blindpipe_serve";
/// The role that erases the key backups of deleted accounts.
pub const ERASING_ROLE: &str = "blindpipe_erase";
/// Deadline of a start. Recovery after a crash may take a while.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// The durability of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A commit survives a power cut, as in production.
    Durable,
    /// Fast, and empty at every start, for tests.
    Test,
    /// Like `Test`, and standbys may follow the server.
    Replicated,
    /// Like `Replicated`, and a commit waits for the standbys that the server is told to wait for.
    Synchronous,
}

impl Durability {
    fn settings(self) -> &'static [&'static str] {
        match self {
            Durability::Durable => &[
                "fsync=on",
                "full_page_writes=on",
                "synchronous_commit=on",
                "max_connections=200",
                "shared_buffers=256MB",
            ],
            Durability::Test => &[
                "fsync=off",
                "full_page_writes=off",
                "synchronous_commit=off",
                "wal_level=minimal",
                "max_wal_senders=0",
                "max_connections=400",
                "shared_buffers=128MB",
            ],
            Durability::Replicated => &[
                "fsync=off",
                "full_page_writes=off",
                "synchronous_commit=off",
                "wal_level=replica",
                "max_wal_senders=4",
                "max_connections=100",
                "shared_buffers=32MB",
            ],
            Durability::Synchronous => &[
                "fsync=off",
                "full_page_writes=off",
                "synchronous_commit=on",
                "wal_level=replica",
                "max_wal_senders=4",
                "max_connections=100",
                "shared_buffers=32MB",
            ],
        }
    }
}

/// The passwords of the roles.
#[derive(Clone, Debug, Default)]
struct Passwords {
    /// Of `blindpipe`.
    owner: String,
    /// Of `postgres`.
    superuser: String,
    /// Of [`SERVING_ROLE`].
    serving: String,
    /// Of [`ERASING_ROLE`].
    erasing: String,
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct PostgresServer {
    tools: Toolset,
    account: Account,
    durability: Durability,
    /// The folder of `data`, `passwords` and `log`.
    folder: PathBuf,
    passwords: Passwords,
    port: u16,
    process: Option<Process>,
}

impl PostgresServer {
    /// Starts a server on the data in `folder`, making the folder if it is missing. The caller
    /// holds a lock on it.
    pub fn start(
        tools: &Toolset,
        account: &Account,
        folder: &Path,
        durability: Durability,
    ) -> Result<Self> {
        make_folder(folder, 0o711)?;
        let mut server = PostgresServer {
            tools: tools.clone(),
            account: account.clone(),
            durability,
            folder: folder.to_owned(),
            passwords: Passwords::default(),
            port: 0,
            process: None,
        };
        server.end_leftovers()?;
        if durability != Durability::Durable {
            // A new cluster takes half a second and is clean: no databases of earlier runs, no
            // damage of a crash without fsync.
            let _ = fs::remove_dir_all(server.data());
        }
        server.prepare()?;
        if durability == Durability::Test {
            server.move_to_memory()?;
        }
        server.launch_on_free_port()?;
        Ok(server)
    }

    /// The URL of database `blindpipe` as its owner.
    pub fn url(&self) -> String {
        format!(
            "postgresql://blindpipe:{}@127.0.0.1:{}/blindpipe",
            self.passwords.owner, self.port
        )
    }

    /// The URL of database `blindpipe` as [`SERVING_ROLE`].
    pub fn serving_url(&self) -> String {
        format!(
            "postgresql://{SERVING_ROLE}:{}@127.0.0.1:{}/blindpipe",
            self.passwords.serving, self.port
        )
    }

    /// The URL of database `blindpipe` as [`ERASING_ROLE`].
    pub fn erasing_url(&self) -> String {
        format!(
            "postgresql://{ERASING_ROLE}:{}@127.0.0.1:{}/blindpipe",
            self.passwords.erasing, self.port
        )
    }

    /// The URL of database `postgres` as the superuser.
    pub fn admin_url(&self) -> String {
        format!(
            "postgresql://postgres:{}@127.0.0.1:{}/postgres",
            self.passwords.superuser, self.port
        )
    }

    pub(crate) fn serving_password(&self) -> &str {
        &self.passwords.serving
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The postmaster's pid; none after [`kill`](Self::kill) or [`stop`](Self::stop).
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Whether the server does not run.
    pub fn is_down(&mut self) -> bool {
        self.process
            .as_mut()
            .is_none_or(|process| process.exit_status().is_some())
    }

    /// Sends a signal to the postmaster. `"STOP"` makes new connections hang until `"CONT"`.
    pub fn signal(&mut self, signal: &str) {
        if let Some(process) = &mut self.process {
            process.signal(signal);
        }
    }

    /// Ends the server at once, without a checkpoint, as a crash would. It cuts all connections,
    /// and no backend remains.
    pub fn kill(&mut self) {
        self.end("QUIT");
    }

    /// Ends the server in order, which rolls open transactions back.
    pub fn stop(&mut self) {
        self.end("INT");
    }

    /// Starts the server again on its old port, and stops it first if it runs.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        self.end_leftovers()?;
        self.launch(self.port)
    }

    fn end(&mut self, signal: &str) {
        if let Some(mut process) = self.process.take() {
            process.signal("CONT");
            process.stop(signal, Duration::from_secs(20));
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The name in the titles of all processes of this cluster.
    fn cluster_name(&self) -> String {
        format!("blindpipe-{}", short_hash(&self.data()))
    }

    /// Ends processes that an earlier start left on this data, and removes its pid file. The pid in
    /// that file is no proof: after a crash it may belong to any program.
    fn end_leftovers(&self) -> Result<()> {
        let (data, title) = (self.data(), format!("postgres: {}", self.cluster_name()));
        let is_postmaster = |_, arguments: &[String]| {
            arguments
                .first()
                .is_some_and(|program| program.ends_with("postgres"))
                && arguments
                    .windows(2)
                    .any(|pair| pair[0] == "-D" && Path::new(&pair[1]) == data)
        };
        let is_backend = |_, arguments: &[String]| {
            arguments
                .first()
                .is_some_and(|name| name.starts_with(&title))
        };
        let uid = self.account.uid;
        let gone = table::end_all(&table::find(uid, is_postmaster), "INT", Duration::from_secs(20))
            // Backends notice the end of their postmaster without a signal.
            && table::end_all(&table::find(uid, is_backend), "QUIT", Duration::from_secs(5));
        if !gone {
            return Err(DevError::new(format!(
                "an earlier PostgreSQL still runs on {} and cannot be ended",
                data.display()
            )));
        }
        let _ = fs::remove_file(data.join("postmaster.pid"));
        Ok(())
    }

    fn launch_on_free_port(&mut self) -> Result<()> {
        let mut taken = Vec::new();
        loop {
            let port = free_port(FIRST_PORT, &taken)?;
            match self.launch(port) {
                // Another program took the port first.
                Err(error) if error.to_string().contains("TCP/IP socket") && taken.len() < 50 => {
                    taken.push(port);
                }
                other => return other,
            }
        }
    }

    fn launch(&mut self, port: u16) -> Result<()> {
        self.port = port;
        let mut log = open_log(&self.folder.join("log"))?;
        let begin = log
            .seek(SeekFrom::End(0))
            .with_context(|| "read the log of PostgreSQL".into())?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        let name = format!("cluster_name={}", self.cluster_name());
        let identity = [
            name,
            format!("port={port}"),
            "listen_addresses=127.0.0.1".into(),
            "unix_socket_directories=".into(),
        ];
        let common = [
            "jit=off",
            "logging_collector=off",
            "log_line_prefix=%m [%p] %u@%d ",
            "log_checkpoints=off",
        ];
        for setting in identity
            .iter()
            .map(String::as_str)
            .chain(common)
            .chain(self.durability.settings().iter().copied())
        {
            command.arg("-c").arg(setting);
        }
        command.stdout(log.try_clone().with_context(|| "share a log".into())?);
        command.stderr(log.try_clone().with_context(|| "share a log".into())?);
        let mut process = Process::spawn(command, "INT")?;
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if self.is_ready(process.pid()) {
                self.process = Some(process);
                return Ok(());
            }
            let ended = process.exit_status().is_some();
            if ended || Instant::now() > deadline {
                let why = if ended {
                    "ended while starting"
                } else {
                    "was not ready in a minute"
                };
                process.stop("QUIT", Duration::from_secs(5));
                let mut words = String::new();
                let _ = log
                    .seek(SeekFrom::Start(begin))
                    .and_then(|_| log.read_to_string(&mut words));
                return Err(DevError::new(format!(
                    "PostgreSQL {why}; its log says:\n{words}"
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether the server accepts connections: the postmaster then writes line 8 of its pid file.
    fn is_ready(&self, pid: u32) -> bool {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        says_ready(&text, pid)
    }

    fn command(&self, program: &str) -> Command {
        // INT asks a postmaster for a fast shutdown.
        self.tools.command(program, "INT", &self.account)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn says_ready(pid_file: &str, pid: u32) -> bool {
    let lines: Vec<_> = pid_file.lines().map(str::trim).collect();
    let is_ours = lines.first().is_some_and(|line| line.parse() == Ok(pid));
    // A standby answers reads.
    is_ours && matches!(lines.get(7), Some(&("ready" | "standby")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_postmaster_can_be_ready() {
        let file = "4711\n/x/data\n1700000000\n15432\n\n127.0.0.1\n 1234 5678\nready   \n";
        assert!(says_ready(file, 4711));
        assert!(!says_ready(file, 4712), "the file of another postmaster");
        assert!(!says_ready(&file.replace("ready   ", "starting"), 4711));
        assert!(!says_ready("4711\n/x/data\n", 4711));
        assert!(!says_ready("", 4711));
    }
}
