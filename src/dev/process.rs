//! Child processes that do not outlive their parent, and how to find those of an earlier run.
//!
//! Every child is started through `setpriv --pdeathsig` (util-linux), so the kernel signals it when the launcher
//! dies, `kill -9` included. The kernel watches the *thread* that started the child, not the process; hence all
//! children are started by one thread that never ends. Each child has its own process group, so Ctrl-C in a terminal
//! reaches the launcher alone and the launcher decides the order of the end. Without `setpriv` everything works
//! except the kernel's signal; the next start then finds and ends what was left.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::{fs::MetadataExt, process::CommandExt},
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

use super::trouble::{Context, DevError, Result};

/// How often a waiting loop looks again.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Pids of the running children and the signal that asks each to end.
static CHILDREN: Mutex<BTreeMap<u32, &'static str>> = Mutex::new(BTreeMap::new());

/// Set once the launcher is being stopped: nothing more is started.
static STOPPING: AtomicBool = AtomicBool::new(false);

fn children() -> MutexGuard<'static, BTreeMap<u32, &'static str>> {
    CHILDREN.lock()
}

/// Whether `setpriv` is here and knows `--pdeathsig`.
static HAS_SETPRIV: LazyLock<bool> = LazyLock::new(|| {
    let mut probe = Command::new("setpriv");
    probe
        .args(["--pdeathsig", "TERM", "--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
});

/// A command that gets `death_signal` when the launcher dies. Its input is empty.
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
    /// Starts `command`; `stop_signal` (`"TERM"`, `"INT"`) is what asks it to end.
    pub fn spawn(command: Command, stop_signal: &'static str) -> Result<Self> {
        if STOPPING.load(Ordering::SeqCst) {
            return Err(DevError::new("stopped while starting"));
        }
        let name = command.get_program().to_string_lossy().into_owned();
        let child = spawn_child(command).doing(|| format!("start {name}"))?;
        let pid = child.id();
        children().insert(pid, stop_signal);
        Ok(Process { child, pid })
    }

    /// Starts `command`, waits for its end and gives what it printed.
    pub fn output(mut command: Command) -> Result<Output> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = command.get_program().to_string_lossy().into_owned();
        let process = Process::spawn(command, "TERM")?;
        process.finish().doing(|| format!("run {name}"))
    }

    /// Starts `command`, writes `input` to it, waits for its end and gives what it printed.
    pub fn output_with_input(mut command: Command, input: &str) -> Result<Output> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn(command, "TERM")?;
        if let Some(mut pipe) = process.child.stdin.take() {
            // A child that ends early breaks the pipe; its exit status says more than that error.
            let _ = io::Write::write_all(&mut pipe, input.as_bytes());
        }
        process.finish().doing(|| "read a child's output".into())
    }

    fn finish(mut self) -> io::Result<Output> {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        // Both pipes at once: a child that fills one while the other is read would wait for ever.
        let reader = thread::spawn(move || drain(stderr));
        let stdout = drain(stdout)?;
        let stderr = reader
            .join()
            .map_err(|_| io::Error::other("the reading thread ended"))??;
        Ok(Output {
            status: self.child.wait()?,
            stdout,
            stderr,
        })
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, or none while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten()?;
        children().remove(&self.pid);
        Some(status)
    }

    /// Sends `signal` (a name such as `"TERM"`) if it still runs.
    pub fn signal(&mut self, signal: &str) {
        if self.ended().is_none() {
            send(self.pid, signal);
        }
    }

    /// Sends `signal` and waits up to `grace` for the end; kills what is still there then.
    pub fn stop(&mut self, signal: &str, grace: Duration) {
        self.signal(signal);
        let deadline = Instant::now() + grace;
        while self.ended().is_none() {
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
        if self.ended().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            children().remove(&self.pid);
        }
    }
}

fn drain(pipe: Option<impl io::Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map(|mut pipe| pipe.read_to_end(&mut bytes))
        .transpose()?;
    Ok(bytes)
}

/// Asks every running child to end and starts no more; those who wait for a child see it end and give up.
pub fn interrupt() {
    STOPPING.store(true, Ordering::SeqCst);
    let running: Vec<_> = children()
        .iter()
        .map(|(pid, signal)| (*pid, *signal))
        .collect();
    for (pid, signal) in running {
        send(pid, signal);
    }
}

/// Sends `signal` to `pid`. The shell's own `kill` is used: it is everywhere, and a system call would be `unsafe`.
pub fn send(pid: u32, signal: &str) {
    let mut kill = Command::new("sh");
    kill.args([
        "-c",
        "kill -s \"$1\" \"$2\"",
        "sh",
        signal,
        &pid.to_string(),
    ]);
    let _ = kill
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Whether `pid` is a process that runs (a zombie has ended).
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything, so the state is what follows the last one.
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Running processes of user `uid` that `is_ours` recognises by pid and arguments. A pid read from a file may long be
/// another's; what a process was started with cannot be mistaken.
pub fn find(uid: u32, is_ours: impl Fn(u32, &[String]) -> bool) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = pids.filter(|pid| {
        let owner = fs::metadata(format!("/proc/{pid}")).map(|data| data.uid());
        owner.is_ok_and(|owner| owner == uid)
            && is_running(*pid)
            && is_ours(*pid, &strings(*pid, "cmdline"))
    });
    ours.collect()
}

/// Whether `pid` was started with `variable` (`NAME=value`) in its environment.
pub fn has_variable(pid: u32, variable: &str) -> bool {
    strings(pid, "environ")
        .iter()
        .any(|entry| entry == variable)
}

/// A file of `/proc/<pid>` that holds strings ended by NUL.
fn strings(pid: u32, file: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\0')
        .split('\0')
        .map(str::to_owned)
        .collect()
}

/// Ends processes that are no children of ours: `signal`, then after `grace` KILL. True once all are gone.
pub fn end(pids: &[u32], signal: &str, grace: Duration) -> bool {
    for (signal, grace) in [(signal, grace), ("KILL", Duration::from_secs(3))] {
        pids.iter()
            .filter(|pid| is_running(**pid))
            .for_each(|pid| send(*pid, signal));
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline {
            if !pids.iter().any(|pid| is_running(*pid)) {
                return true;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(end(&[u32::MAX], "TERM", Duration::from_secs(1)));
    }
}
