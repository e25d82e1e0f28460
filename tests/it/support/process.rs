//! A node as a process of its own, which a test can kill.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    secrets,
    world::{TestNode, World},
};

/// The program of this build.
const PROGRAM: &str = env!("CARGO_BIN_EXE_blindpipe");

/// A node that is not ready by then hangs. The tests beside it may have all processors.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

pub struct ProcessNode {
    child: Child,
    log: std::path::PathBuf,
    pub base: String,
    admin: String,
}

/// The end of a process that did not serve.
pub struct Ended {
    /// None if the process had to be killed.
    pub code: Option<i32>,
    /// Its standard error.
    pub said: String,
}

impl ProcessNode {
    /// Starts a node that is to refuse to serve, and waits ten seconds for its end.
    pub async fn ends(world: &World, own: &[(&str, &str)]) -> Ended {
        let log = std::env::temp_dir().join(format!("blindpipe-log-{}", super::ulid()));
        let mut child = Command::new(env!("CARGO_BIN_EXE_blindpipe"))
            .arg("serve")
            .env_clear()
            .envs(world.environment())
            .envs(own.iter().copied())
            .stderr(Stdio::from(File::create(&log).expect("a log file")))
            .spawn()
            .expect("a process");
        let mut status = None;
        for _ in 0..200 {
            status = child.try_wait().expect("a child");
            if status.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        child.kill().ok();
        child.wait().expect("ended");
        let said = std::fs::read_to_string(&log).expect("a log");
        std::fs::remove_file(&log).ok();
        Ended {
            code: status.and_then(|status| status.code()),
            said,
        }
    }

    /// Starts a node of the same world as `other`, and waits until it serves.
    pub async fn start(other: &TestNode) -> Self {
        Self::start_in(&other.world).await
    }

    /// Like [`start`](Self::start), with additional settings.
    pub async fn start_with(other: &TestNode, own: &[(&str, &str)]) -> Self {
        Self::launch(&other.world, "serve", own).await
    }

    /// Starts a worker of the same world as `other`.
    pub async fn start_worker(other: &TestNode, own: &[(&str, &str)]) -> Self {
        Self::launch(&other.world, "worker", own).await
    }

    /// Starts a node in a world without other nodes.
    pub async fn start_in(world: &World) -> Self {
        Self::launch(world, "serve", &[]).await
    }

    /// Like [`start_in`](Self::start_in), with additional settings.
    pub async fn start_in_with(world: &World, own: &[(&str, &str)]) -> Self {
        Self::launch(world, "serve", own).await
    }

    /// Starts a node of another build, if there is one, or else of this build.
    pub async fn start_build(world: &World, program: Option<&Path>) -> Self {
        let program = program.unwrap_or(Path::new(PROGRAM));
        Self::launch_program(program, world, "serve", &[]).await
    }

    async fn launch(world: &World, command: &str, own: &[(&str, &str)]) -> Self {
        Self::launch_program(Path::new(PROGRAM), world, command, own).await
    }

    async fn launch_program(
        program: &Path,
        world: &World,
        command: &str,
        own: &[(&str, &str)],
    ) -> Self {
        let [public, admin] = [free_port(), free_port()];
        let log = std::env::temp_dir().join(format!("blindpipe-log-{}", super::ulid()));
        let child = Command::new(program)
            .arg(command)
            .env_clear()
            .envs(world.environment())
            .env("LISTEN_ADDR", format!("127.0.0.1:{public}"))
            .env("ADMIN_ADDR", format!("127.0.0.1:{admin}"))
            .env("LOG", "warn")
            .envs(own.iter().copied())
            .stderr(Stdio::from(File::create(&log).expect("a log file")))
            .spawn()
            .expect("a process");
        let mut node = ProcessNode {
            child,
            log,
            base: format!("http://127.0.0.1:{public}"),
            admin: format!("http://127.0.0.1:{admin}"),
        };
        let mut ended = None;
        let since = Instant::now();
        while ended.is_none() && since.elapsed() < READY_TIMEOUT {
            let ready = reqwest::get(format!("http://127.0.0.1:{admin}/health/ready")).await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                return node;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            ended = node.exit_status();
        }
        let log = std::fs::read_to_string(&node.log).unwrap_or_default();
        panic!("the node does not get ready: ended {ended:?}, its log is {log:?}");
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// Asks the process to end in order, with SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Stops the process for so long, and then lets it go on.
    pub async fn freeze(&self, time: Duration) {
        self.signal(Signal::STOP);
        tokio::time::sleep(time).await;
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process"), signal).expect("a signal");
    }

    /// The status of an ended process.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// The URL of its readiness.
    pub fn ready(&self) -> String {
        format!("{}/health/ready", self.admin)
    }

    /// Its own memory in bytes. Pages of the program's file come and go with the machine's cache, so
    /// they do not count.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("a running process");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
        let kilobytes: u64 = kilobytes
            .and_then(|text| text.parse().ok())
            .expect("a number of kilobytes");
        kilobytes * 1024
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its metrics.
    pub async fn metrics(&self) -> String {
        let answer = reqwest::get(format!("{}/metrics", self.admin)).await;
        answer.expect("metrics").text().await.expect("text")
    }

    /// The sum of one of its metrics over the lines that have `label` in them.
    pub async fn metric(&self, name: &str, label: &str) -> f64 {
        let text = self.metrics().await;
        let lines = text
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(label));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// Waits for its end. Returns the exit code.
    pub async fn ended(&mut self, within: Duration) -> Option<i32> {
        let deadline = tokio::time::Instant::now() + within;
        while tokio::time::Instant::now() < deadline {
            if let Some(status) = self.exit_status() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }
}

impl Drop for ProcessNode {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        std::fs::remove_file(&self.log).ok();
        if !std::thread::panicking() {
            let lines: Vec<String> = log.lines().map(str::to_owned).collect();
            let leak = secrets::find(&lines);
            assert_eq!(leak, None, "the node has logged a secret");
        }
    }
}

/// A port below the kernel's range for outgoing connections, so that none takes it before the node
/// does. No call gets the port of another one, since a node may listen much later than it asked.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(rand::random()));
    loop {
        let port = 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
