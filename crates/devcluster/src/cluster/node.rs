//! A node of the cluster: its settings, its process and its restarts.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    Shutdown,
    settings::{self, CLUSTER_VARIABLE, Settings},
};
use crate::{
    account::Account,
    error::{Context, DevError, Result},
    files::{log_tail, open_log},
    process::{self, Process, table},
    terminal::{say, warn},
};

/// Pause between two probes of a node or checks of its process.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest drain before the process is killed. A drain takes at most 30 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(35);
/// A node that ran for a shorter time restarts with growing delays.
const MIN_HEALTHY_RUN: Duration = Duration::from_secs(10);

/// The ports of a node on loopback.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// The public listener's port.
    pub public: u16,
    /// The admin listener's port.
    pub admin: u16,
}

#[derive(Clone, Debug)]
pub struct Node {
    /// The name of the node: `node-1`, `node-2`.
    pub name: String,
    pub ports: Ports,
    /// The log file of the node's output.
    pub log: PathBuf,
    program: PathBuf,
    environment: Vec<(String, String)>,
}

impl Node {
    /// A node on `ports`. `all` are the public ports of all nodes.
    pub fn new(
        name: String,
        ports: Ports,
        program: &Path,
        settings: &Settings,
        all: &[u16],
    ) -> Self {
        Node {
            environment: settings.environment(&name, ports, all),
            log: settings.root.join("logs").join(format!("{name}.log")),
            program: program.to_owned(),
            name,
            ports,
        }
    }

    /// The node as a web origin.
    pub fn origin(&self) -> String {
        settings::origin(self.ports.public)
    }

    /// The address that clients use.
    pub fn base_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.public)
    }

    /// The address of probes and metrics.
    pub fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.admin)
    }

    /// Renames the log of the last run.
    pub fn rotate_log(&self) {
        let _ = fs::rename(&self.log, self.log.with_extension("log.old"));
    }

    /// Starts the program with `subcommand`, the node's settings and `extra` ones. Its output is
    /// appended to `log`.
    pub fn run(&self, subcommand: &str, extra: &[(&str, &str)], log: &Path) -> Result<Process> {
        let log = open_log(log)?;
        let mut command = process::command(&self.program, "TERM");
        command
            .arg(subcommand)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(extra.iter().copied());
        command
            .stderr(log.try_clone().with_context(|| "share a log".into())?)
            .stdout(log);
        Process::spawn(command, "TERM")
    }

    pub fn spawn(&self) -> Result<Process> {
        self.run("serve", &[], &self.log)
    }

    /// Returns when the node is ready.
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

    /// Waits for a new `process` to be ready. Errors, with the end of its log: the process ended,
    /// or a minute has passed.
    pub async fn first_ready(&self, http: &reqwest::Client, process: &mut Process) -> Result<()> {
        let why = tokio::select! {
            () = self.ready(http) => return Ok(()),
            status = wait(process) => format!("ended while starting ({status})"),
            () = sleep(Duration::from_secs(60)) => "was not ready in a minute".to_owned(),
        };
        Err(DevError::new(format!(
            "{} {why}; the end of {}:\n{}",
            self.name,
            self.log.display(),
            log_tail(&self.log)
        )))
    }

    /// Keeps the node running until the shutdown. A node that ends restarts on its old ports, and
    /// `restarted` gets the new pid.
    pub async fn supervise(
        &self,
        mut process: Process,
        http: &reqwest::Client,
        shutdown: &Shutdown,
        restarted: impl Fn(u32),
    ) {
        let mut short_runs = 0;
        loop {
            let began = Instant::now();
            let status = tokio::select! {
                status = wait(&mut process) => status,
                () = shutdown.requested() => return drain(process, shutdown).await,
            };
            short_runs = if began.elapsed() < MIN_HEALTHY_RUN {
                short_runs + 1
            } else {
                0
            };
            let pause = restart_delay(short_runs);
            self.report_end(&process, status, pause);
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.requested() => return,
            }
            process = match self.spawn() {
                Ok(process) => process,
                Err(error) => return warn(error),
            };
            restarted(process.pid());
            tokio::select! {
                () = self.ready(http) => say(format!("{} is ready again (process {}).", self.name, process.pid())),
                _ = wait(&mut process) => {}
                () = shutdown.requested() => {}
            }
        }
    }

    fn report_end(&self, process: &Process, status: ExitStatus, pause: Duration) {
        let when = match pause.as_secs() {
            0 => String::new(),
            seconds => format!(" in {seconds} s"),
        };
        say(format!(
            "{} (process {}) has ended: {status}. Starting it again on the same port{when}.",
            self.name,
            process.pid()
        ));
    }
}

/// Ends nodes that an earlier run of the cluster in `root` left behind.
pub fn end_leftovers(root: &Path) -> Result<()> {
    let mark = format!("{CLUSTER_VARIABLE}={}", root.display());
    let is_ours = |pid: u32, arguments: &[String]| {
        arguments
            .get(1)
            .is_some_and(|subcommand| subcommand == "serve")
            && table::has_variable(pid, &mark)
    };
    // Their database is gone, so there is little to drain.
    if table::end_all(
        &table::find(Account::launcher()?.uid, is_ours),
        "TERM",
        Duration::from_secs(3),
    ) {
        return Ok(());
    }
    Err(DevError::new(
        "nodes of an earlier run are still there and cannot be ended",
    ))
}

/// Ends a node in order, or at once after a second shutdown request.
pub async fn drain(mut process: Process, shutdown: &Shutdown) {
    process.signal("TERM");
    tokio::select! {
        _ = wait(&mut process) => {}
        () = sleep(DRAIN_TIMEOUT) => {}
        () = shutdown.hurried() => {}
    }
    process.stop("KILL", Duration::from_secs(5));
}

/// Waits for the end of `process`.
pub async fn wait(process: &mut Process) -> ExitStatus {
    loop {
        if let Some(status) = process.exit_status() {
            return status;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The delay after a number of short runs in a row: none at first, then 1, 2, 4… up to 16 s.
fn restart_delay(short_runs: u32) -> Duration {
    match short_runs {
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
            .map(|runs| restart_delay(runs).as_secs())
            .into();
        assert_eq!(pauses, [0, 0, 1, 2, 16, 16]);
    }
}
