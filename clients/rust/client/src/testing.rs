//! A real cluster for tests: the development cluster of the service, not an imitation.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, OnceLock, mpsc},
    thread,
    time::Duration,
};

use blindpipe_e2ee::AgentKey;
use blindpipe_protocol::{accounts::Scene, agents::Manifest, ids::AgentId};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::{
    Agent, Client, Error, Result, Server,
    agent::AgentBuilder,
    client::{ClientBuilder, Registration},
    transport::{Clock, new_id, rng},
};

const READY_TIMEOUT: Duration = Duration::from_secs(120);
const MAIL_TIMEOUT: Duration = Duration::from_secs(20);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const HUMAN: &str = "dev-pass";

/// The protection password of [`DevCluster::user`].
pub const PROTECTION_PASSWORD: &str = "correct horse battery staple";

#[derive(Deserialize)]
struct ClusterFile {
    nodes: Vec<ClusterNode>,
    ca_file: PathBuf,
    mail_dir: PathBuf,
    postgres_url: String,
}

#[derive(Deserialize)]
struct ClusterNode {
    base_url: String,
    pid: u32,
}

/// A development cluster. If this process started it, it ends with this process.
pub struct DevCluster {
    file: PathBuf,
    server: Server,
    end: Arc<OnceLock<ExitStatus>>,
}

/// A person with a device whose keys are backed up.
#[derive(Clone, Debug)]
pub struct TestUser {
    /// The client.
    pub client: Client,
    /// The address of the account.
    pub email: String,
    /// The account's password.
    pub password: String,
}

/// The credentials of an agent.
#[derive(Clone)]
pub struct TestAgent {
    /// The agent.
    pub id: AgentId,
    /// `hsk_…`
    pub token: String,
    /// `bpk_…`
    pub key: String,
}

impl DevCluster {
    /// Uses the cluster that runs in `dir`, or starts `program` there with `settings`. Fetched
    /// programs are kept in `packages`.
    ///
    /// # Errors
    ///
    /// The program may not be built, or not start.
    pub async fn start(
        dir: &Path,
        program: &Path,
        packages: Option<&Path>,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let file = dir.join("cluster.json");
        let mut end = Arc::default();
        if !file.exists() {
            let mut command = with_this_process(program);
            command.arg("--dir").arg(dir).arg("--no-demo");
            if let Some(packages) = packages {
                command.arg("--packages").arg(packages);
            }
            command.envs(settings.iter().copied());
            end = launch(command).map_err(Error::other)?;
        }
        let until = Instant::now() + READY_TIMEOUT;
        while !file.exists() {
            if let Some(status) = end.get() {
                return Err(has_ended(*status));
            }
            if Instant::now() > until {
                return Err(Error::Usage("the development cluster did not start"));
            }
            sleep(LOOK_INTERVAL).await;
        }
        let cluster = read(&file).map_err(Error::other)?;
        let authority = fs::read(&cluster.ca_file).map_err(Error::other)?;
        let first = cluster.nodes.first();
        let first = first.ok_or(Error::Usage("the cluster has no nodes"))?;
        let server = Server::new(first.base_url.as_str()).with_authority(authority);
        Ok(Self { file, server, end })
    }

    fn read(&self) -> Result<ClusterFile> {
        match self.end.get() {
            Some(status) => Err(has_ended(*status)),
            None => read(&self.file).map_err(Error::other),
        }
    }

    /// The address of its Postgres, for what else a test keeps there.
    ///
    /// # Errors
    ///
    /// The cluster may have ended.
    pub fn postgres_url(&self) -> Result<String> {
        Ok(self.read()?.postgres_url)
    }

    /// The certificate authority of its nodes, in PEM.
    ///
    /// # Errors
    ///
    /// The cluster may have ended.
    pub fn ca_file(&self) -> Result<PathBuf> {
        Ok(self.read()?.ca_file)
    }

    /// Its nodes.
    ///
    /// # Errors
    ///
    /// The cluster may have ended.
    pub fn nodes(&self) -> Result<Vec<Server>> {
        let nodes = self.read()?.nodes;
        Ok(nodes
            .iter()
            .map(|node| self.server.at(node.base_url.as_str()))
            .collect())
    }

    /// A node by its number; the numbers wrap around.
    ///
    /// # Errors
    ///
    /// The cluster may have ended.
    pub fn node(&self, number: usize) -> Result<Server> {
        let nodes = self.nodes()?;
        let node = nodes.get(number % nodes.len().max(1)).cloned();
        node.ok_or(Error::Usage("the cluster has no nodes"))
    }

    /// Registers a person at node 0; the device's keys are made and backed up.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn user(&self, name: &str) -> Result<TestUser> {
        self.user_with(name, Client::builder(self.node(0)?)).await
    }

    /// Registers a person with a client of one's own making.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn user_with(&self, name: &str, builder: ClientBuilder) -> Result<TestUser> {
        let unique = blindpipe_e2ee::ids::ulid(new_id(&Clock::default()).into_bytes());
        let letters = name.chars().filter(char::is_ascii_alphanumeric);
        let email = format!("{}-{unique}@example.com", letters.collect::<String>());
        let email = email.to_lowercase();
        let password = format!("account-{unique}");
        builder.send_code(&email, Scene::Register, HUMAN).await?;
        let client = builder
            .register(Registration {
                email: email.clone(),
                code: self.code(&email).await?,
                password: password.clone(),
                display_name: name.to_owned(),
                turnstile_token: HUMAN.to_owned(),
            })
            .await?;
        client.devices().create(PROTECTION_PASSWORD).await?;
        Ok(TestUser {
            client,
            email,
            password,
        })
    }

    /// Signs a person in on another device, at node `node`.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn device(&self, of: &TestUser, node: usize, device_id: &str) -> Result<Client> {
        let builder = Client::builder(self.node(node)?).device_id(device_id);
        builder.login(&of.email, &of.password, HUMAN).await
    }

    /// The code that was mailed to an address.
    ///
    /// # Errors
    ///
    /// No mail may come.
    pub async fn code(&self, email: &str) -> Result<String> {
        let mails = self.read()?.mail_dir;
        let until = Instant::now() + MAIL_TIMEOUT;
        loop {
            if let Some(code) = find_code(&mails, email) {
                return Ok(code);
            }
            if Instant::now() > until {
                return Err(Error::Usage("no mail with a code came"));
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Creates an agent of this person, with a new key.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn agent(
        &self,
        name: &str,
        owner: &Client,
        manifest: Option<&Manifest>,
    ) -> Result<TestAgent> {
        let made = owner.create_agent(name, manifest).await?;
        Ok(TestAgent {
            id: made.agent_id,
            token: made.token.expose().to_owned(),
            key: AgentKey::random(&mut rng()).to_text().to_string(),
        })
    }

    /// An agent at node `node`.
    ///
    /// # Errors
    ///
    /// The cluster may have ended.
    pub fn builder(&self, agent: &TestAgent, node: usize) -> Result<AgentBuilder> {
        let builder = Agent::builder(self.node(node)?, agent.id, agent.token.as_str());
        builder.key(&agent.key)
    }

    /// Kills a node as a crash would. The cluster starts it again, on the same port.
    ///
    /// # Errors
    ///
    /// The cluster may have ended.
    pub fn kill(&self, node: usize) -> Result<()> {
        let nodes = self.read()?.nodes;
        let node = nodes
            .get(node)
            .ok_or(Error::Usage("there is no such node"))?;
        let mut kill = Command::new("kill");
        let killed = kill.arg("-KILL").arg(node.pid.to_string()).status();
        killed.map(drop).map_err(Error::other)
    }
}

/// A program that the kernel ends with this process, where the machine has `setpriv`.
fn with_this_process(program: &Path) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--pdeathsig", "INT", "--"]);
    let mut trial = Command::new("setpriv");
    trial.args(["--pdeathsig", "INT", "--", "true"]);
    let works = trial
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let mut command = if works {
        setpriv.arg(program);
        setpriv
    } else {
        Command::new(program)
    };
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Starts a program, and tells when it has ended. The kernel watches the thread that starts it, so
/// that thread waits for its end.
fn launch(mut command: Command) -> io::Result<Arc<OnceLock<ExitStatus>>> {
    let end = Arc::<OnceLock<ExitStatus>>::default();
    let (sender, started) = mpsc::channel();
    let tell = end.clone();
    thread::spawn(move || match command.spawn() {
        Ok(mut child) => {
            sender.send(Ok(())).ok();
            if let Ok(status) = child.wait() {
                tell.set(status).ok();
            }
        }
        Err(error) => {
            sender.send(Err(error)).ok();
        }
    });
    started.recv().map_err(io::Error::other)??;
    Ok(end)
}

fn has_ended(status: ExitStatus) -> Error {
    Error::other(format!("the development cluster has ended ({status})"))
}

fn read(file: &Path) -> io::Result<ClusterFile> {
    let text = fs::read(file)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}

/// The code in the newest mail to `address`; none before the mail has come.
fn find_code(mails: &Path, address: &str) -> Option<String> {
    let files = fs::read_dir(mails)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let mails = files.filter(|path| path.extension().is_some_and(|extension| extension == "eml"));
    let codes = mails.filter_map(|path| {
        let written_at = fs::metadata(&path).ok()?.modified().ok()?;
        let mail = fs::read_to_string(path).ok()?;
        let mut lines = mail.lines().map(str::trim);
        let code =
            lines.find(|line| line.len() == 8 && line.bytes().all(|b| b.is_ascii_digit()))?;
        mail.contains(address)
            .then(|| (written_at, code.to_owned()))
    });
    codes.max().map(|(_, code)| code)
}
