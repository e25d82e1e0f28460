//! One node of the dev cluster: its settings, its process, and its coming back after an end.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    place::my_uid,
    postgres::open_log,
    process::{self, Process},
    settings::{self, MARK, Settings},
    stop::Stop,
    terminal::{say, warn},
    trouble::{Context, DevError, Result},
};

/// How often a node is asked whether it is ready, and its process whether it still runs.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A node that drains is done in 30 s; what is still there after this is killed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(35);
/// A node that lived shorter than this is started again with growing pauses.
const MIN_HEALTHY_RUN: Duration = Duration::from_secs(10);
/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    /// `node-1`, `node-2`.
    pub name: String,
    /// Port of the public listener.
    pub port: u16,
    /// Port of the admin listener.
    pub admin_port: u16,
    /// Where its output goes.
    pub log: PathBuf,
    environment: Vec<(String, String)>,
}

impl Node {
    /// Node number `n` (from 1) on `ports` (public, admin); `all` are the public ports of all nodes.
    pub fn new(n: usize, ports: (u16, u16), all: &[u16], settings: &Settings) -> Self {
        let name = format!("node-{n}");
        let environment = settings.environment(&name, ports, all);
        let log = settings.dev.join("logs").join(format!("{name}.log"));
        Node {
            name,
            port: ports.0,
            admin_port: ports.1,
            log,
            environment,
        }
    }

    /// The node as a web origin.
    pub fn origin(&self) -> String {
        settings::origin(self.port)
    }

    /// The address clients use.
    pub fn base_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The address of probes and metrics.
    pub fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.admin_port)
    }

    /// Puts the log of the last run aside.
    pub fn rotate_log(&self) {
        let _ = fs::rename(&self.log, self.log.with_extension("log.old"));
    }

    /// Starts this program with `subcommand` and the node's settings, its output appended to `log`.
    pub fn run(&self, subcommand: &str, log: &Path) -> Result<Process> {
        let program = env::current_exe().doing(|| "find this program's own file".into())?;
        let log = open_log(log)?;
        let mut command = process::command(&program, "TERM");
        command
            .arg(subcommand)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .stderr(log.try_clone().doing(|| "share a log".into())?)
            .stdout(log);
        Process::spawn(command, "TERM")
    }

    /// Starts the node.
    pub fn spawn(&self) -> Result<Process> {
        self.run("serve", &self.log)
    }

    /// Returns when the node serves.
    pub async fn ready(&self, http: &reqwest::Client) {
        let probe = format!("{}/health/ready", self.admin_url());
        loop {
            let answer = http
                .get(&probe)
                .timeout(Duration::from_secs(2))
                .send()
                .await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits for a fresh `process` to serve; its end or a minute without success is trouble, told with its log.
    pub async fn first_ready(&self, http: &reqwest::Client, process: &mut Process) -> Result<()> {
        let why = tokio::select! {
            () = self.ready(http) => return Ok(()),
            how = ended(process) => format!("ended while starting ({how})"),
            () = sleep(Duration::from_secs(60)) => "was not ready in a minute".to_owned(),
        };
        Err(DevError::new(format!(
            "{} {why}; the end of {}:\n{}",
            self.name,
            self.log.display(),
            tail(&self.log)
        )))
    }

    /// The node's life from its first process until the cluster stops: whenever it ends, it is started again on the
    /// same port, and `moved` hears of its new process.
    pub async fn live(
        &self,
        mut process: Process,
        http: &reqwest::Client,
        stop: &Stop,
        moved: impl Fn(u32),
    ) {
        let mut short_lives = 0;
        loop {
            let born = Instant::now();
            let (name, pid) = (&self.name, process.pid());
            let how = tokio::select! {
                how = ended(&mut process) => how,
                () = stop.requested() => return drain(process, stop).await,
            };
            short_lives = if born.elapsed() < MIN_HEALTHY_RUN {
                short_lives + 1
            } else {
                0
            };
            let pause = pause_after(short_lives);
            let when = if pause.is_zero() {
                String::new()
            } else {
                format!(" in {} s", pause.as_secs())
            };
            say(format!(
                "{name} (process {pid}) has ended: {how}. Starting it again on the same port{when}."
            ));
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.requested() => return,
            }
            process = match self.spawn() {
                Ok(process) => process,
                Err(trouble) => return warn(trouble),
            };
            moved(process.pid());
            tokio::select! {
                () = self.ready(http) => say(format!("{name} is ready again (process {}).", process.pid())),
                _ = ended(&mut process) => {}
                () = stop.requested() => {}
            }
        }
    }
}

/// Ends nodes that an earlier run of the cluster in `dev` left behind.
pub fn end_leftovers(dev: &Path) -> Result<()> {
    let mark = format!("{MARK}={}", dev.display());
    let is_ours = |pid: u32, arguments: &[String]| {
        arguments
            .get(1)
            .is_some_and(|subcommand| subcommand == "serve")
            && process::has_variable(pid, &mark)
    };
    // Their database is gone, so there is little to drain.
    if process::end(
        &process::find(my_uid()?, is_ours),
        "TERM",
        Duration::from_secs(3),
    ) {
        return Ok(());
    }
    Err(DevError::new(
        "nodes of an earlier run are still there and cannot be ended",
    ))
}

/// Ends a node in order, or at once when the person is in a hurry.
pub async fn drain(mut process: Process, stop: &Stop) {
    process.signal("TERM");
    tokio::select! {
        _ = ended(&mut process) => {}
        () = sleep(DRAIN_TIMEOUT) => {}
        () = stop.hurried() => {}
    }
    process.stop("KILL", Duration::from_secs(5));
}

/// Returns when `process` has ended, and says how.
pub async fn ended(process: &mut Process) -> String {
    loop {
        if let Some(status) = process.ended() {
            return status.to_string();
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// How long to wait after so many short lives in a row: not at all at first, then 1, 2, 4… up to 16 s.
fn pause_after(short_lives: u32) -> Duration {
    match short_lives {
        0 | 1 => Duration::ZERO,
        n => Duration::from_secs(1 << (n - 2).min(4)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_dies_at_once_is_started_ever_more_slowly() {
        let pauses: Vec<_> = [0, 1, 2, 3, 6, 60]
            .map(|lives| pause_after(lives).as_secs())
            .into();
        assert_eq!(pauses, [0, 0, 1, 2, 16, 16]);
    }
}
