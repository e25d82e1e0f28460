//! Processes of this machine, found through `/proc` and ended by signals.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::POLL_INTERVAL;

/// Sends `signal` (`"TERM"`, `"STOP"`) to `pid`. Every shell has `kill` built in.
pub fn send_signal(pid: u32, signal: &str) {
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

/// Whether `pid` runs. A zombie has ended.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything, so the state follows the last parenthesis.
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Running processes of user `uid` that `is_ours` recognises by pid and arguments. A pid from a
/// file is no proof: the kernel may have given it to another process.
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

/// Whether the environment of `pid` contains `variable` (`NAME=value`).
pub fn has_variable(pid: u32, variable: &str) -> bool {
    strings(pid, "environ")
        .iter()
        .any(|entry| entry == variable)
}

/// Reads a file of `/proc/<pid>` that consists of strings ended by NUL.
fn strings(pid: u32, file: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\0')
        .split('\0')
        .map(str::to_owned)
        .collect()
}

/// Ends processes that are no children of the launcher: `signal`, then KILL after `grace`. True
/// once all are gone.
pub fn end_all(pids: &[u32], signal: &str, grace: Duration) -> bool {
    for (signal, grace) in [(signal, grace), ("KILL", Duration::from_secs(3))] {
        pids.iter()
            .filter(|pid| is_running(**pid))
            .for_each(|pid| send_signal(*pid, signal));
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
