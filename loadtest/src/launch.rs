//! A cluster that this program starts for the time of a run, with limits above any load.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Result, report::say};

/// The limits that a run would exhaust. Every call is still counted against them, at full cost.
const RAISED: [&str; 20] = [
    "agent_message_send",
    "agent_conversation_message_send",
    "agent_poll",
    "agent_token_regenerate",
    "user_message_send",
    "auth_register_ip",
    "auth_login_ip",
    "ws_connect_ip",
    "ws_connect",
    "user_messages_list",
    "agent_tier_1",
    "group_member_add",
    "group_agent_instance",
    "conversation_open",
    "agent_file_upload",
    "webhook_call",
    "webhook_origin",
    "agent_object_get",
    "default_user",
    "default_ip",
];
/// The longest start. The first one ever may have to download Postgres and Redis.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A running cluster, which is stopped when this is dropped.
pub struct Launched {
    child: Child,
    /// The file that describes it.
    pub cluster_file: PathBuf,
}

impl Launched {
    /// Starts `program` (`devcluster`) in `dir` and waits until the cluster is up. Programs of an
    /// earlier commit may lack a limit, which is then left out.
    pub async fn start(program: &Path, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let mut raised = RAISED.to_vec();
        loop {
            let log = match Self::start_with(program, dir, &raised).await? {
                Ok(launched) => return Ok(launched),
                Err(log) => log,
            };
            let before = raised.len();
            raised.retain(|limit| !log.contains(&format!("there is no limit \\\"{limit}\\\"")));
            if raised.len() == before {
                return Err(format!("the cluster did not come up:\n{log}").into());
            }
        }
    }

    /// Starts the cluster with these limits raised. The inner error is its log.
    async fn start_with(
        program: &Path,
        dir: &Path,
        raised: &[&str],
    ) -> Result<std::result::Result<Self, String>> {
        let (cluster_file, log_file) = (dir.join("cluster.json"), dir.join("dev.log"));
        let log = fs::File::create(&log_file)?;
        let limits: Vec<String> = raised
            .iter()
            .map(|scope| format!("{scope}=1000000/s"))
            .collect();
        // The kernel ends the cluster if this program is killed (util-linux). Without it, the next
        // start cleans up.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "INT", "--"]).arg(program);
        // A process group of its own: Ctrl-C reaches only this program, which then stops the
        // cluster in order.
        command
            .args(["--no-demo", "--dir"])
            .arg(dir)
            .env("LIMIT_OVERRIDES", limits.join(","))
            // The scenario of webhooks starts a worker of its own.
            .env("WEBHOOK_WORKER", "false")
            .process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command
            .spawn()
            .map_err(|error| format!("setpriv {}: {error}", program.display()))?;
        let mut launched = Launched {
            child,
            cluster_file,
        };
        let began = Instant::now();
        while !launched.is_up() {
            let ended = launched.child.try_wait()?;
            if ended.is_some() || began.elapsed() > TIMEOUT {
                return Ok(Err(fs::read_to_string(&log_file).unwrap_or_default()));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        say(format!(
            "A cluster is up in {} ({:.1} s).",
            dir.display(),
            began.elapsed().as_secs_f64()
        ));
        Ok(Ok(launched))
    }

    /// Whether the cluster is up. A file of an earlier cluster does not count.
    fn is_up(&self) -> bool {
        let written = fs::metadata(&self.cluster_file)
            .and_then(|data| data.modified())
            .ok();
        let started = fs::metadata(format!("/proc/{}", self.child.id()))
            .and_then(|data| data.modified())
            .ok();
        matches!((written, started), (Some(written), Some(started)) if written >= started)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            kill_process(pid, Signal::INT).ok();
        }
        self.child.wait().ok();
    }
}
