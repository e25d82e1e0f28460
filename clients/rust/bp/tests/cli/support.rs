//! A cluster for the whole test process, folders of their own, and `bp` itself.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use blindpipe_client::{
    agent::AgentBuilder,
    testing::{DevCluster, TestAgent},
};
use rexpect::session::{PtySession, spawn_command};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::schema;

/// Tests share an address.
const LIMITS: &str = "auth_register_ip=10000/10min,default_ip=100000/min,default_user=100000/min,\
    agent_tier_1=100000/min,ws_connect=100000/min,ws_connect_ip=100000/min,keys_lookup=100000/min,\
    auth_login_ip=10000/10min,auth_send_code=10000/min,auth_human_ip=10000/10min,conversation_open=10000/h";
/// Milliseconds for what comes within moments on a quiet machine.
const PATIENCE_MS: u64 = 60_000;

static CLUSTER: OnceCell<DevCluster> = OnceCell::const_new();

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The folder of the cluster, as `--dev` takes it.
pub fn folder() -> PathBuf {
    root().join(".dev/bp")
}

pub async fn cluster() -> &'static DevCluster {
    let start = async || {
        let dir = folder();
        // A database of an older schema would stop the start.
        if !dir.join("cluster.json").exists() {
            fs::remove_dir_all(&dir).ok();
        }
        let own = env::current_exe().expect("this program's file");
        let built = own.parent().and_then(Path::parent).expect("a folder");
        let packages = root().join(".dev/packages");
        let settings = [("LIMIT_OVERRIDES", LIMITS), ("QUICK_HASHES", "true")];
        let program = built.join("devcluster");
        let started = DevCluster::start(&dir, &program, Some(&packages), &settings).await;
        started.expect("a cluster; `cargo build --workspace` builds its programs")
    };
    CLUSTER.get_or_init(start).await
}

/// The outcome of a command.
pub struct Ran {
    arguments: Vec<String>,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    fn ended(&self, code: i32) {
        let Self {
            arguments,
            stdout,
            stderr,
            ..
        } = self;
        assert_eq!(self.code, code, "{arguments:?}\n{stdout}\n{stderr}");
    }

    /// The output, after an orderly end.
    pub fn done(self) -> String {
        self.ended(0);
        self.stdout
    }

    /// The only item of the output.
    pub fn item(self) -> Value {
        let mut items = self.items();
        assert_eq!(items.len(), 1, "{items:?}");
        items.remove(0)
    }

    /// The lines of JSON of the output.
    pub fn items(self) -> Vec<Value> {
        let lines = self.done();
        let lines = lines.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    }

    /// The error of a command with `--json`.
    pub fn refused(self, code: i32) -> Value {
        self.ended(code);
        let line = self.stderr.lines().last().expect("an error");
        let error: Value = serde_json::from_str(line).expect("an error of JSON");
        assert_eq!(error["error"]["exit"], code, "{error}");
        error["error"].clone()
    }
}

/// A user of a machine, whose `bp` keeps all in one folder.
pub struct Home {
    pub folder: TempDir,
}

impl Home {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    /// Somebody who is logged in at the cluster.
    pub async fn with_person() -> Self {
        cluster().await;
        let home = Self::new();
        let dev = folder().display().to_string();
        home.bp(&["register", "--dev", &dev, "--name", "Ada"])
            .done();
        home
    }

    /// The builder of a new agent of the person, for a run in this process.
    pub async fn new_agent(&self, name: &str) -> AgentBuilder {
        let new = self.json(&["agent", "new", name]).item();
        let text = |name: &str| new[name].as_str().expect(name).to_owned();
        let credentials = TestAgent {
            id: text("BLINDPIPE_AGENT_ID").parse().expect("an id"),
            token: text("BLINDPIPE_TOKEN"),
            key: text("BLINDPIPE_KEY"),
        };
        cluster().await.builder(&credentials, 1).expect("a node")
    }

    /// Another home with the same contexts, sessions and credentials.
    pub fn copy(&self) -> Self {
        let other = Self::new();
        let (from, to) = (self.folder.path().join("config"), other.folder.path());
        let copied = Command::new("cp")
            .arg("-a")
            .args([from.as_path(), to])
            .status();
        assert!(copied.expect("cp").success());
        other
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config/bp")
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes a file into the folder.
    pub fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("written");
        self.path(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bp"));
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("BP_") || name.starts_with("BLINDPIPE_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("XDG_CONFIG_HOME", self.folder.path().join("config"))
            .env("TERM", "xterm")
            .env("PATH", with_bp())
            .stdin(Stdio::null());
        command
    }

    /// The variables that make a program this agent.
    pub fn variables(&self, agent: &str) -> Vec<(String, String)> {
        let file = self.path("variables.env");
        self.bp(&["agent", "env", agent, &file, "--force"]).done();
        let text = fs::read_to_string(file).expect("a file");
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned()))
            .collect()
    }

    pub fn bp(&self, arguments: &[&str]) -> Ran {
        run(self.command(arguments), "")
    }

    /// A command with `--json`.
    pub fn json(&self, arguments: &[&str]) -> Ran {
        self.bp(&[&["--json"], arguments].concat())
    }

    /// The command at a terminal.
    pub fn terminal(&self, arguments: &[&str]) -> PtySession {
        let mut command = self.command(arguments);
        command.stdin(Stdio::inherit());
        spawn_command(command, Some(PATIENCE_MS)).expect("a terminal")
    }
}

/// Runs a command to its end, with what it reads. Its output with `--json` is held to its schema.
pub fn run(mut command: Command, input: &str) -> Ran {
    command.stdin(Stdio::piped());
    let arguments = command
        .get_args()
        .map(|it| it.to_string_lossy().into_owned());
    let arguments: Vec<_> = arguments.collect();
    let mut child = piped(command);
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).ok();
    drop(stdin);
    let output = child.wait_with_output().expect("its end");
    let ran = Ran {
        arguments,
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    };
    schema::hold(&ran.arguments, &ran.stdout, &ran.stderr);
    ran
}

pub fn piped(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("bp")
}

/// A group of processes that ends with its test.
pub struct Group(pub Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        Command::new("kill")
            .args(["-TERM", "--", &group])
            .status()
            .ok();
        self.0.wait().ok();
    }
}

/// `PATH`, with the built `bp` first.
fn with_bp() -> String {
    let bp = Path::new(env!("CARGO_BIN_EXE_bp"));
    let folder = bp.parent().expect("a folder").display();
    format!("{folder}:{}", env::var("PATH").unwrap_or_default())
}

/// An interpreter with these packages, which are installed once per list below `.dev`. Where they
/// cannot be installed, the test says so.
pub fn python_with(name: &str, packages: &[&str]) -> Option<String> {
    if !python_is_there() {
        return None;
    }
    let folder = root().join(".dev").join(name);
    let done = folder.join("installed");
    let python = folder.join("bin/python").display().to_string();
    let wanted = packages.join("\n");
    if fs::read_to_string(&done).ok().as_ref() == Some(&wanted) {
        return Some(python);
    }
    fs::remove_dir_all(&folder).ok();
    let made = Command::new("python3")
        .args(["-m", "venv"])
        .arg(&folder)
        .status();
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ];
    let install = || Command::new(&python).args(pip).args(packages).status();
    if !made
        .and_then(|_| install())
        .is_ok_and(|status| status.success())
    {
        let text = format!("NOT TESTED: {name}: the packages could not be installed");
        writeln!(std::io::stderr(), "{text}").ok();
        return None;
    }
    fs::write(done, wanted).expect("written");
    Some(python)
}

/// Whether projects in Python can be run on this machine. Where they cannot, a test says so.
pub fn python_is_there() -> bool {
    let mut python = Command::new("python3");
    python.args([
        "-c",
        "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))",
    ]);
    let is_there = python
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !is_there {
        let text = "NOT TESTED: there is no Python >= 3.11 with venv and ensurepip";
        writeln!(std::io::stderr(), "{text}").ok();
    }
    is_there
}

/// Whether the service has approvals. Where it has none, a test says so.
pub fn has_approvals(home: &Home) -> bool {
    let is_there = home.json(&["api", "GET", "/approvals"]).code == 0;
    if !is_there {
        writeln!(
            std::io::stderr(),
            "NOT TESTED: the service has no approvals"
        )
        .ok();
    }
    is_there
}
