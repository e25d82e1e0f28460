//! A private Redis server: nothing on disk, a random password, a free port of 127.0.0.1.

mod cluster;
mod sentinel;

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use self::sentinel::SERVICE;
pub use self::{cluster::RedisCluster, sentinel::RedisSentinels};
use crate::{
    account::Account,
    error::{Context, DevError, Result},
    files::{make_folder, open_log, write_secret},
    ports::free_port,
    process::{POLL_INTERVAL, Process, table},
    random,
    toolset::Toolset,
};

/// The search for a free port begins here.
const FIRST_PORT: u16 = 16379;
const START_DEADLINE: Duration = Duration::from_secs(15);

/// The part that a server plays.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// It has all keys.
    Single,
    /// A node of a Redis Cluster.
    Clustered,
    /// A master or a replica. A command says which.
    Replicated,
    /// A sentinel of the master on this port.
    Sentinel { master: u16 },
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct RedisServer {
    tools: Toolset,
    account: Account,
    /// The folder of `redis.conf`, `password` and `log`.
    folder: PathBuf,
    password: String,
    port: u16,
    mode: Mode,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts a server that keeps its few files in `folder`. The caller holds a lock on the folder.
    pub fn start(tools: &Toolset, account: &Account, folder: &Path) -> Result<Self> {
        Self::start_as(tools, account, folder, FIRST_PORT, Mode::Single)
    }

    /// Starts a server on a random port. A restart then finds its port free, even if other servers
    /// started meanwhile.
    pub fn start_apart(tools: &Toolset, account: &Account, folder: &Path) -> Result<Self> {
        Self::start_as(tools, account, folder, random_port(), Mode::Single)
    }

    /// Starts a future node of a Redis Cluster. It knows no other node and has no slots yet.
    pub fn start_clustered(tools: &Toolset, account: &Account, folder: &Path) -> Result<Self> {
        Self::start_as(tools, account, folder, random_port(), Mode::Clustered)
    }

    fn start_as(
        tools: &Toolset,
        account: &Account,
        folder: &Path,
        first_port: u16,
        mode: Mode,
    ) -> Result<Self> {
        make_folder(folder, 0o711)?;
        let secret = folder.join("password");
        let password = match fs::read_to_string(&secret) {
            Ok(text) if text.trim().len() >= 32 => text.trim().to_owned(),
            _ => {
                let password = random::base62(40);
                write_secret(&secret, &password)?;
                password
            }
        };
        let (tools, account, folder) = (tools.clone(), account.clone(), folder.to_owned());
        let mut server = RedisServer {
            tools,
            account,
            folder,
            password,
            port: 0,
            mode,
            process: None,
        };
        server.end_leftovers()?;
        if !matches!(mode, Mode::Single) {
            // An earlier cluster left its topology here.
            let state = server.state_folder();
            let _ = fs::remove_dir_all(&state);
            make_folder(&state, 0o711)?;
            server.account.take_ownership(&state)?;
        }
        let mut taken = Vec::new();
        loop {
            let port = free_port(first_port, &taken)?;
            match server.launch(port) {
                Ok(()) => return Ok(server),
                Err(error) if error.to_string().contains("in use") && taken.len() < 50 => {
                    taken.push(port);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The URL of database 0.
    pub fn url(&self) -> String {
        format!("redis://:{}@127.0.0.1:{}/0", self.password, self.port)
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The pid; none after [`kill`](Self::kill) or [`stop`](Self::stop).
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Whether the server does not run.
    pub fn is_down(&mut self) -> bool {
        self.process
            .as_mut()
            .is_none_or(|process| process.exit_status().is_some())
    }

    /// Sends a signal: `"STOP"` makes every command hang until `"CONT"`.
    pub fn signal(&mut self, signal: &str) {
        if let Some(process) = &mut self.process {
            process.signal(signal);
        }
    }

    /// Ends the server by SIGKILL, which cuts all connections and loses all data.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.stop("KILL", Duration::from_secs(5));
        }
    }

    /// Ends the server in order, which loses all data too.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal("CONT");
            process.stop("TERM", Duration::from_secs(10));
        }
    }

    /// Starts the server again, empty, on its old port, and stops it first if it runs.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        self.launch(self.port)
    }

    /// The folder that the server itself writes to.
    fn state_folder(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// A sentinel rewrites its settings.
    fn configuration(&self) -> PathBuf {
        match self.mode {
            Mode::Sentinel { .. } => self.state_folder().join("redis.conf"),
            _ => self.folder.join("redis.conf"),
        }
    }

    /// Ends a server that an earlier start left running with this configuration.
    fn end_leftovers(&self) -> Result<()> {
        let configuration = self.configuration();
        let is_ours = |_, arguments: &[String]| {
            arguments
                .first()
                .is_some_and(|program| program.ends_with("redis-server"))
                && arguments
                    .get(1)
                    .is_some_and(|file| Path::new(file) == configuration)
        };
        if table::end_all(
            &table::find(self.account.uid, is_ours),
            "TERM",
            Duration::from_secs(5),
        ) {
            return Ok(());
        }
        Err(DevError::new(
            "an earlier Redis of this cluster still runs and cannot be ended",
        ))
    }

    /// Writes all settings into a file, since the password must not show in the list of processes.
    /// A later start recognises the process by its unchanged title.
    fn write_configuration(&self) -> Result<()> {
        let password = &self.password;
        let mut text = format!(
            "bind 127.0.0.1\nport {}\nrequirepass {password}\ndaemonize no\npidfile \"\"\nlogfile \"\"\n\
             set-proc-title no\n",
            self.port
        );
        if !matches!(self.mode, Mode::Sentinel { .. }) {
            text += "unixsocket \"\"\nsave \"\"\nappendonly no\nmaxmemory-policy noeviction\n\
                     enable-debug-command local\n";
        }
        if !matches!(self.mode, Mode::Single) {
            text += &format!("dir {}\n", self.state_folder().display());
        }
        text += &match self.mode {
            Mode::Single => String::new(),
            Mode::Clustered => format!(
                "cluster-enabled yes\ncluster-node-timeout 2000\n{}",
                replication(password)
            ),
            Mode::Replicated => replication(password),
            // Production waits 30 seconds and more.
            Mode::Sentinel { master } => format!(
                "sentinel monitor {SERVICE} 127.0.0.1 {master} 2\n\
                 sentinel auth-pass {SERVICE} {password}\n\
                 sentinel down-after-milliseconds {SERVICE} 1000\n\
                 sentinel failover-timeout {SERVICE} 3000\n"
            ),
        };
        write_secret(&self.configuration(), &text)?;
        self.account.take_ownership(&self.configuration())
    }

    fn launch(&mut self, port: u16) -> Result<()> {
        self.port = port;
        self.write_configuration()?;
        let log_path = self.folder.join("log");
        let _ = fs::remove_file(&log_path);
        let log = open_log(&log_path)?;
        let mut command = self.tools.command("redis-server", "TERM", &self.account);
        command.arg(self.configuration());
        if matches!(self.mode, Mode::Sentinel { .. }) {
            command.arg("--sentinel");
        }
        command
            .stderr(log.try_clone().with_context(|| "share a log".into())?)
            .stdout(log);
        let mut process = Process::spawn(command, "TERM")?;
        let deadline = Instant::now() + START_DEADLINE;
        while !answers(port, &self.password) {
            let ended = process.exit_status().is_some();
            if ended || Instant::now() > deadline {
                process.stop("KILL", Duration::from_secs(5));
                let words = fs::read_to_string(&log_path).unwrap_or_default();
                return Err(DevError::new(format!(
                    "Redis did not start; its log says:\n{words}"
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.process = Some(process);
        Ok(())
    }
}

impl RedisServer {
    /// Repeats a command until the answer contains `expected`.
    fn send_until(&self, command: &str, expected: &str, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let answer = self
                .send(command)
                .with_context(|| format!("ask Redis on port {}", self.port))?;
            if answer.contains(expected) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(DevError::new(format!(
                    "Redis does not come to say {expected:?} to {command}: {answer}"
                )));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The answer to a command, as it is on the wire.
    fn send(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(format!("AUTH {}\r\n{command}\r\n", self.password).as_bytes())?;
        // The server answers all and closes. A sentinel has no QUIT.
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        // The answer follows that of AUTH.
        Ok(answer
            .split_once("\r\n")
            .map_or_else(String::new, |(_, rest)| rest.to_owned()))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Settings of servers that replicate without files.
fn replication(password: &str) -> String {
    format!(
        "masterauth {password}\nrepl-diskless-sync yes\nrepl-diskless-sync-delay 0\n\
         repl-diskless-load on-empty-db\n"
    )
}

/// A random first port for a search, below the ports of test nodes.
fn random_port() -> u16 {
    let [a, b]: [u8; 2] = random::bytes();
    FIRST_PORT + 100 + u16::from_le_bytes([a, b]) % 3000
}

/// Whether the Redis on `port` knows this server's password.
fn answers(port: u16, password: &str) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(format!("AUTH {password}\r\nPING\r\n").as_bytes())?;
        let mut answer = [0; b"+OK\r\n+PONG\r\n".len()];
        stream.read_exact(&mut answer)?;
        Ok(&answer == b"+OK\r\n+PONG\r\n")
    };
    ask().unwrap_or(false)
}
