//! Child processes that do not outlive their parent.
//!
//! Every child starts through `setpriv --pdeathsig` (util-linux): the kernel signals it when the
//! launcher dies, even by `kill -9`. The kernel watches the *thread* that started the child, so a
//! single thread that never ends starts them all. Each child has its own process group. So Ctrl-C
//! in a terminal reaches the launcher alone, and the launcher decides the order of the end. Without
//! `setpriv` the next start finds and ends leftover processes (see [`table`]).

pub mod table;

use std::{
    collections::BTreeMap,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        LazyLock, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

use crate::error::{Context, DevError, Result};

pub use table::send_signal;

/// Pause between two checks of a waiting loop.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Pids of the running children and the signal that asks each to end.
static CHILDREN: Mutex<BTreeMap<u32, &'static str>> = Mutex::new(BTreeMap::new());

/// Set when the launcher stops: no further child starts.
static STOPPING: AtomicBool = AtomicBool::new(false);

fn children() -> MutexGuard<'static, BTreeMap<u32, &'static str>> {
    CHILDREN.lock()
}

/// Whether this machine has a `setpriv` that knows `--pdeathsig`.
static HAS_SETPRIV: LazyLock<bool> = LazyLock::new(|| {
    let mut probe = Command::new("setpriv");
    probe
        .args(["--pdeathsig", "TERM", "--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
});

/// A command whose process gets `death_signal` when the launcher dies. Its input is empty.
pub fn command(program: &Path, death_signal: &'static str) -> Command {
    let mut command = if *HAS_SETPRIV {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", death_signal, "--"])
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// Starts a command from the thread that lives as long as the process.
fn spawn_child(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        // The sender is a static, so the queue never ends and neither does the thread.
        thread::spawn(move || {
            for (mut command, answer) in queue {
                let _ = answer.send(command.spawn());
            }
        });
        jobs
    });
    let (answer, child) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    spawner.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: u32,
}

impl Process {
    /// Starts `command`. `stop_signal` (`"TERM"`, `"INT"`) asks it to end.
    pub fn spawn(command: Command, stop_signal: &'static str) -> Result<Self> {
        if STOPPING.load(Ordering::SeqCst) {
            return Err(DevError::new("stopped while starting"));
        }
        let name = command.get_program().to_string_lossy().into_owned();
        let child = spawn_child(command).with_context(|| format!("start {name}"))?;
        let pid = child.id();
        children().insert(pid, stop_signal);
        Ok(Process { child, pid })
    }

    /// Runs `command` to its end and returns its output.
    pub fn output(mut command: Command) -> Result<Output> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = command.get_program().to_string_lossy().into_owned();
        let process = Process::spawn(command, "TERM")?;
        process.finish().with_context(|| format!("run {name}"))
    }

    /// Runs `command` with `input` on its standard input and returns its output.
    pub fn output_with_input(mut command: Command, input: &str) -> Result<Output> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn(command, "TERM")?;
        if let Some(mut pipe) = process.child.stdin.take() {
            // A child that ends early breaks the pipe, and its exit status is more useful than that
            // error.
            let _ = io::Write::write_all(&mut pipe, input.as_bytes());
        }
        process
            .finish()
            .with_context(|| "read a child's output".into())
    }

    fn finish(mut self) -> io::Result<Output> {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        // Both pipes are read at once: a child would wait for ever if it filled one while the other
        // is read.
        let reader = thread::spawn(move || read_all(stderr));
        let stdout = read_all(stdout)?;
        let stderr = reader
            .join()
            .map_err(|_| io::Error::other("the reading thread ended"))??;
        Ok(Output {
            status: self.child.wait()?,
            stdout,
            stderr,
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The exit status, or none while the process runs.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten()?;
        children().remove(&self.pid);
        Some(status)
    }

    /// Sends a signal (`"TERM"`, `"STOP"`) if the process still runs.
    pub fn signal(&mut self, signal: &str) {
        if self.exit_status().is_none() {
            send_signal(self.pid, signal);
        }
    }

    /// Sends `signal`, waits up to `grace` for the end, then kills.
    pub fn stop(&mut self, signal: &str, grace: Duration) {
        self.signal(signal);
        let deadline = Instant::now() + grace;
        while self.exit_status().is_none() {
            if Instant::now() >= deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit_status().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            children().remove(&self.pid);
        }
    }
}

fn read_all(pipe: Option<impl io::Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map(|mut pipe| pipe.read_to_end(&mut bytes))
        .transpose()?;
    Ok(bytes)
}

/// Asks every running child to end and prevents further starts. Code that waits for a child sees
/// its end and gives up.
pub fn interrupt() {
    STOPPING.store(true, Ordering::SeqCst);
    let running: Vec<_> = children()
        .iter()
        .map(|(pid, signal)| (*pid, *signal))
        .collect();
    for (pid, signal) in running {
        send_signal(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use super::{
        table::{end_all, find, is_running},
        *,
    };

    #[test]
    fn a_child_is_found_by_its_arguments_and_stopped() {
        let mut command = command(Path::new("sleep"), "TERM");
        command.arg("4242.25");
        let mut child = Process::spawn(command, "TERM").unwrap();
        let uid = fs::metadata("/proc/self").unwrap().uid();
        let is_ours = |_, args: &[String]| args == ["sleep", "4242.25"];
        let deadline = Instant::now() + Duration::from_secs(5);
        while find(uid, is_ours) != [child.pid()] {
            assert!(Instant::now() < deadline, "not found");
            thread::sleep(POLL_INTERVAL);
        }
        child.stop("TERM", Duration::from_secs(5));
        assert!(!is_running(child.pid()));
        assert!(find(uid, is_ours).is_empty());
    }

    #[test]
    fn no_process_runs_under_an_impossible_pid() {
        assert!(!is_running(u32::MAX));
        assert!(end_all(&[u32::MAX], "TERM", Duration::from_secs(1)));
    }
}
