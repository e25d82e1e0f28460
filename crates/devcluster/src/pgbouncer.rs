//! A private PgBouncer in transaction mode, for tests.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{
    account::Account,
    directories::Directories,
    error::{Context, DevError, Result},
    files::{make_folder, open_log, write_secret},
    packages::Product,
    ports::free_port,
    postgres::{PostgresServer, SERVING_ROLE},
    process::{POLL_INTERVAL, Process, table},
    random, terminal,
    toolset::Toolset,
};

/// The search for a free port begins here or up to a thousand above.
const FIRST_PORT: u16 = 13_432;
const START_DEADLINE: Duration = Duration::from_secs(10);
/// Connections to Postgres per database. Two nodes want 50, so they have to share them.
const POOL_SIZE: u16 = 20;

/// A running pooler in front of a Postgres. It serves [`SERVING_ROLE`] in every database. Dropping
/// it stops it.
#[derive(Debug)]
pub struct PgBouncer {
    tools: Toolset,
    account: Account,
    /// The folder of the settings, the passwords and the log.
    folder: PathBuf,
    port: u16,
    process: Option<Process>,
}

/// The message of a test that has no PgBouncer.
pub fn missing_pooler_notice(reason: &str) -> String {
    terminal::notice("NODES ARE NOT TESTED BEHIND PGBOUNCER", reason)
}

impl PgBouncer {
    /// Finds or fetches the program.
    pub fn obtain(directories: &Directories) -> Result<Toolset> {
        Toolset::obtain(directories, Product::PgBouncer)
    }

    /// Starts a pooler before `postgres`, with all its files in `folder`. The caller holds a lock
    /// on it.
    pub fn start(
        directories: &Directories,
        folder: &Path,
        postgres: &PostgresServer,
    ) -> Result<Self> {
        let tools = Self::obtain(directories)?;
        make_folder(folder, 0o711)?;
        let mut pooler = PgBouncer {
            tools,
            account: directories.account.clone(),
            folder: folder.to_owned(),
            port: 0,
            process: None,
        };
        pooler.end_leftovers()?;
        let users = pooler.folder.join("users");
        let password = postgres.serving_password();
        write_secret(&users, &format!("\"{SERVING_ROLE}\" \"{password}\"\n"))?;
        pooler.account.take_ownership(&users)?;
        let [port]: [u8; 1] = random::bytes();
        let first = FIRST_PORT + 4 * u16::from(port);
        let mut taken = Vec::new();
        loop {
            pooler.port = free_port(first, &taken)?;
            pooler.write_configuration(postgres.port())?;
            match pooler.launch() {
                Ok(()) => return Ok(pooler),
                Err(error) if error.to_string().contains("in use") && taken.len() < 50 => {
                    taken.push(pooler.port);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends the pooler by SIGKILL, which cuts all connections on both sides.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.stop("KILL", Duration::from_secs(5));
        }
    }

    /// Starts the pooler again on its old port, and kills it first if it runs.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()
    }

    fn configuration(&self) -> PathBuf {
        self.folder.join("pgbouncer.ini")
    }

    /// Settings as `helm/blindpipe/README.md` asks for them. Tests make many databases, so idle
    /// connections end soon. Tests end their Postgres, so the next login comes soon.
    fn write_configuration(&self, postgres_port: u16) -> Result<()> {
        let file = self.configuration();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={postgres_port}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = scram-sha-256\nauth_file = {}\n\
             pool_mode = transaction\nmax_prepared_statements = 500\n\
             ignore_startup_parameters = options\n\
             default_pool_size = {POOL_SIZE}\nmax_client_conn = 5000\nserver_idle_timeout = 5\n\
             server_login_retry = 1\n\
             log_connections = 0\nlog_disconnections = 0\n",
            self.port,
            self.folder.join("users").display()
        );
        write_secret(&file, &text)?;
        self.account.take_ownership(&file)
    }

    /// Ends a pooler that an earlier start left running with these settings.
    fn end_leftovers(&self) -> Result<()> {
        let configuration = self.configuration();
        let is_ours = |_, arguments: &[String]| {
            arguments
                .last()
                .is_some_and(|file| Path::new(file) == configuration)
        };
        let found = table::find(self.account.uid, is_ours);
        if table::end_all(&found, "QUIT", Duration::from_secs(5)) {
            return Ok(());
        }
        Err(DevError::new(
            "an earlier PgBouncer still runs and cannot be ended",
        ))
    }

    fn launch(&mut self) -> Result<()> {
        let log_path = self.folder.join("log");
        let _ = fs::remove_file(&log_path);
        let log = open_log(&log_path)?;
        let mut command = self.tools.command("pgbouncer", "QUIT", &self.account);
        command.arg(self.configuration());
        command
            .stderr(log.try_clone().with_context(|| "share a log".into())?)
            .stdout(log);
        let mut process = Process::spawn(command, "QUIT")?;
        let deadline = Instant::now() + START_DEADLINE;
        // Another program may answer on the port, so the log says when this one is up.
        while !fs::read_to_string(&log_path).is_ok_and(|log| log.contains("process up")) {
            if process.exit_status().is_some() || Instant::now() > deadline {
                process.stop("KILL", Duration::from_secs(5));
                let words = fs::read_to_string(&log_path).unwrap_or_default();
                return Err(DevError::new(format!(
                    "PgBouncer did not start; its log says:\n{words}"
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.process = Some(process);
        Ok(())
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.kill();
    }
}
