//! The WebSocket suite of the Autobahn project against the server's socket code.
//!
//! The suite tests the server's example `echo`, which has the handshake, bounds and codec of `/ws`.
//! It is written in Python 2, which current systems lack. The interpreter comes from the last
//! Debian that had it, and the suite with its imports from PyPI.

mod report;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    account::Account,
    directories::Directories,
    error::{Context, DevError, Result},
    files::make_folder,
    packages::{self, Product},
    ports::{free_port, is_free},
    process::{self, POLL_INTERVAL, Process},
    terminal::say,
    toolset::Toolset,
};

/// The search for a free port begins here.
const FIRST_PORT: u16 = 9001;
const ECHO_START_TIMEOUT: Duration = Duration::from_secs(10);

/// The interpreter's program.
pub const PYTHON: &str = "python2.7";

/// The pinned packages with their hashes.
const REQUIREMENTS: &str = include_str!("requirements.txt");

/// Cases that cannot pass. The server has no compression, and it takes messages up to 1 MB where
/// these cases send 4 MB.
const EXCLUDED: [&str; 10] = [
    "12.*", "13.*", "9.1.4", "9.1.5", "9.1.6", "9.2.4", "9.2.5", "9.2.6", "9.3.*", "9.4.*",
];
/// Runs the suite against the program `echo` and prints the outcome. A failed case is an error.
pub fn run(directories: &Directories, echo: &Path) -> Result<()> {
    let suite = Suite::obtain(directories)?;
    let port = free_port(FIRST_PORT, &[])?;
    let _echo = start_echo(echo, port)?;
    let path = suite.run(port)?;
    let cases = report::read(&path)?;
    report::print(&report::tally(&cases));
    say(format!(
        "{} cases; the full report is {}.",
        cases.len(),
        path.with_file_name("index.html").display()
    ));
    report::verdict(&cases)
}

/// Starts the echo server and waits until it listens.
fn start_echo(program: &Path, port: u16) -> Result<Process> {
    let mut command = process::command(program, "TERM");
    command.arg(port.to_string());
    let mut echo = Process::spawn(command, "TERM")?;
    let deadline = Instant::now() + ECHO_START_TIMEOUT;
    while is_free(port) {
        if echo.exit_status().is_some() || Instant::now() > deadline {
            return Err(DevError::new(format!(
                "{} did not start",
                program.display()
            )));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(echo)
}

struct Suite {
    python: Toolset,
    account: Account,
    folder: PathBuf,
}

impl Suite {
    fn obtain(directories: &Directories) -> Result<Self> {
        let python = Toolset::obtain(directories, Product::Python2)?;
        let suite = Suite {
            python,
            account: Account::launcher()?,
            folder: directories.root.join("autobahn"),
        };
        let root = packages::unpacked(&directories.packages, Product::Python2);
        // The interpreter searches this folder without a setting.
        let libraries = root.join("usr/local/lib/python2.7");
        let installed = libraries.join("dist-packages");
        if !installed.exists() {
            suite.install(
                &root.join("usr/share/python-wheels"),
                &libraries.join("partial"),
            )?;
            fs::rename(libraries.join("partial"), &installed)
                .with_context(|| "put the suite in place".into())?;
        }
        Ok(suite)
    }

    /// Installs the suite. pip and its imports run from the wheels in `wheels`.
    fn install(&self, wheels: &Path, target: &Path) -> Result<()> {
        say("Fetching the suite from PyPI.");
        let _ = fs::remove_dir_all(target);
        make_folder(&self.folder, 0o755)?;
        let requirements = self.folder.join("requirements.txt");
        fs::write(&requirements, REQUIREMENTS).with_context(|| "write the pins".into())?;
        let wheels = fs::read_dir(wheels).with_context(|| "find pip".into())?;
        let path = std::env::join_paths(wheels.flatten().map(|wheel| wheel.path()));
        let mut pip = self.python.command(PYTHON, "TERM", &self.account);
        pip.env(
            "PYTHONPATH",
            path.with_context(|| "name pip's parts".into())?,
        );
        pip.args([
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
            "--requirement",
        ]);
        pip.arg(&requirements).arg("--target").arg(target);
        check("fetch the suite", pip)
    }

    /// Runs all cases against the echo on `port` and returns the path of the report.
    fn run(&self, port: u16) -> Result<PathBuf> {
        let reports = self.folder.join("reports");
        let _ = fs::remove_dir_all(&reports);
        make_folder(&reports, 0o755)?;
        let spec = self.folder.join("spec.json");
        let text = json!({
            "outdir": reports,
            "servers": [{ "agent": "blindpipe", "url": format!("ws://127.0.0.1:{port}/") }],
            "cases": ["*"], "exclude-cases": EXCLUDED, "exclude-agent-cases": {},
        });
        fs::write(&spec, text.to_string()).with_context(|| "write what is to be run".into())?;
        say("Running the suite; it takes about half a minute.");
        let mut wstest = self.python.command(PYTHON, "TERM", &self.account);
        wstest
            .args([
                "-m",
                "autobahntestsuite.wstest",
                "--mode",
                "fuzzingclient",
                "--spec",
            ])
            .arg(&spec);
        check("run the suite", wstest)?;
        Ok(reports.join("index.json"))
    }
}

fn check(action: &str, command: Command) -> Result<()> {
    let output = Process::output(command)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<_> = text.lines().collect();
    Err(DevError::new(format!(
        "could not {action}:\n{}",
        lines[lines.len().saturating_sub(8)..].join("\n")
    )))
}
