//! A cluster for the whole test process, and what tests do with it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use blindpipe_client::{
    Agent, Result,
    agent::AgentBuilder,
    client::{ClientEvent, Conversation, Events, Received},
    protocol::ids::{ConversationId, Principal},
    testing::{DevCluster, TestAgent, TestUser},
};
use tokio::{
    net::TcpListener,
    sync::{OnceCell, RwLock, RwLockReadGuard},
    task::JoinSet,
    time::timeout,
};

/// Tests share an address and make many connections; what people send stays limited.
const LIMITS: [(&str, &str); 10] = [
    ("agent_conversation_message_send", "1000/s"),
    ("auth_register_ip", "10000/10min"),
    ("default_ip", "100000/min"),
    ("default_user", "100000/min"),
    ("agent_tier_1", "100000/min"),
    ("ws_connect", "100000/min"),
    ("ws_connect_ip", "100000/min"),
    ("keys_lookup", "100000/min"),
    ("conversation_open", "10000/h"),
    ("user_messages_list", "100000/min"),
];
/// A wait for something that comes within moments on a quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

static CLUSTER: OnceCell<DevCluster> = OnceCell::const_new();
/// The test that kills a node has the cluster to itself.
pub static QUIET: RwLock<()> = RwLock::const_new(());

pub struct Shared {
    pub cluster: &'static DevCluster,
    _quiet: Option<RwLockReadGuard<'static, ()>>,
}

impl std::ops::Deref for Shared {
    type Target = DevCluster;

    fn deref(&self) -> &DevCluster {
        self.cluster
    }
}

/// The cluster, beside other tests.
pub async fn cluster() -> Shared {
    let quiet = Some(QUIET.read().await);
    let cluster = the_cluster().await;
    Shared {
        cluster,
        _quiet: quiet,
    }
}

pub async fn the_cluster() -> &'static DevCluster {
    let start = async || {
        // The warnings of clients without a store are not these tests'.
        let silent = tracing::subscriber::NoSubscriber::new();
        tracing::subscriber::set_global_default(silent).ok();
        let dir = folder();
        // A database of an older schema would stop the start.
        if !dir.join("cluster.json").exists() {
            fs::remove_dir_all(&dir).ok();
        }
        let limits = LIMITS
            .map(|(name, rate)| format!("{name}={rate}"))
            .join(",");
        let packages = root().join(".dev/packages");
        let settings = [
            ("LIMIT_OVERRIDES", limits.as_str()),
            ("QUICK_HASHES", "true"),
        ];
        let program = built("devcluster");
        let started = DevCluster::start(&dir, &program, Some(&packages), &settings).await;
        started.expect("a cluster; `cargo build --workspace` builds its programs")
    };
    CLUSTER.get_or_init(start).await
}

/// Everything that the cluster keeps.
pub fn folder() -> PathBuf {
    root().join(".dev/clients-rust")
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// A program of the workspace, built as the tests are.
pub fn built(name: &str) -> PathBuf {
    let own = env::current_exe().expect("this program's file");
    let folder = own.parent().and_then(Path::parent).expect("a folder");
    folder.join(name)
}

/// Ada at node 0, and an agent of hers at node 1 that does not run yet.
pub struct Scene {
    pub cluster: Shared,
    pub ada: TestUser,
    pub agent: TestAgent,
}

pub async fn scene(name: &str) -> Scene {
    let cluster = cluster().await;
    let ada = cluster.user("ada").await.expect("a person");
    let agent = cluster.agent(name, &ada.client, None).await;
    let agent = agent.expect("an agent");
    Scene {
        cluster,
        ada,
        agent,
    }
}

impl Scene {
    pub fn builder(&self) -> AgentBuilder {
        self.cluster.builder(&self.agent, 1).expect("a node")
    }

    pub async fn conversation(&self) -> Conversation {
        let opened = self.ada.client.open_agent(self.agent.id).await;
        opened.expect("a conversation")
    }

    /// Runs the agent and opens Ada's conversation with it.
    pub async fn talk(&self, builder: AgentBuilder) -> Talk {
        let agent = running(builder).await;
        let conversation = self.conversation().await;
        let events = watch(&self.ada).await;
        Talk {
            agent,
            conversation,
            events,
        }
    }
}

/// A running agent, Ada's conversation with it, and her events.
pub struct Talk {
    pub agent: Running,
    pub conversation: Conversation,
    pub events: Watch,
}

impl Talk {
    /// The next message of the agent.
    pub async fn answer(&mut self) -> Received {
        self.events.answer(&self.conversation).await
    }
}

/// Two people at node 0.
pub async fn pair(cluster: &DevCluster) -> (TestUser, TestUser) {
    let ada = cluster.user("ada").await.expect("a person");
    let bob = cluster.user("bob").await.expect("a person");
    (ada, bob)
}

/// The direct conversation of two people, as the first one has it.
pub async fn direct(of: &TestUser, with: &TestUser) -> Conversation {
    let id = with.client.user_id().expect("an id");
    let opened = of.client.open_direct(id).await;
    opened.expect("a conversation")
}

/// An agent that runs for the time of a test.
pub struct Running {
    pub agent: Agent,
    task: JoinSet<Result<()>>,
}

pub async fn running(builder: AgentBuilder) -> Running {
    run(builder.build()).await
}

pub async fn run(agent: Agent) -> Running {
    agent.check().await.expect("a key that fits");
    let mut task = JoinSet::new();
    let running = agent.clone();
    task.spawn(async move { running.run_until_stopped().await });
    Running { agent, task }
}

impl Running {
    /// Stops it as an operator would.
    pub async fn stop(mut self) {
        self.agent.stop();
        let ended = self.task.join_next().await.expect("a task");
        ended.expect("no panic").expect("an orderly end");
    }
}

/// The secret of [`receiving`].
pub const WEBHOOK_SECRET: &str = "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";

/// A receiver of an agent's deliveries, which the service knows.
pub struct Receiving(#[expect(dead_code, reason = "it ends with its test")] JoinSet<()>);

pub async fn receiving(agent: &Agent) -> Receiving {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let router = agent.webhook(WEBHOOK_SECRET).expect("a secret");
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let served = axum::serve(listener, router.into_router()).await;
        served.expect("served");
    });
    let webhook = agent.set_webhook(&url, WEBHOOK_SECRET).await;
    let webhook = webhook.expect("registered");
    let status = webhook.status.as_str();
    assert_eq!(status, "active", "{:?}", webhook.last_error);
    Receiving(serving)
}

/// A person's events; those from before are left out.
pub struct Watch(Events);

pub async fn watch(user: &TestUser) -> Watch {
    let mut events = user.client.events().expect("a socket");
    let caught_up = async {
        while !matches!(
            events.next().await.expect("an event"),
            ClientEvent::CaughtUp
        ) {}
    };
    timeout(PATIENCE, caught_up).await.expect("caught up");
    Watch(events)
}

impl Watch {
    pub async fn next(&mut self) -> ClientEvent {
        let next = timeout(PATIENCE, self.0.next()).await;
        next.expect("an event in time").expect("an event")
    }

    /// The next message of an agent in a conversation, and the events before it.
    pub async fn answer_after(&mut self, of: ConversationId) -> (Received, Vec<ClientEvent>) {
        let mut before = Vec::new();
        loop {
            match self.next().await {
                ClientEvent::Message {
                    received,
                    conversation,
                    ..
                } if conversation.id() == of && is_by_agent(&received) => {
                    return (*received, before);
                }
                event => before.push(event),
            }
        }
    }

    pub async fn answer(&mut self, of: &Conversation) -> Received {
        self.answer_after(of.id()).await.0
    }

    /// The text of the next answer after a send.
    pub async fn ask(&mut self, of: &Conversation, words: &str) -> String {
        of.send(words).await.expect("sent");
        let answer = self.answer(of).await;
        answer.opened.as_ref().expect("it opens");
        answer.text().to_owned()
    }
}

pub fn is_by_agent(received: &Received) -> bool {
    matches!(received.message.sender.id, Principal::Agent(_))
}

/// A conversation as a person reads it, oldest first: each text, or why it does not open.
pub async fn texts(of: &Conversation) -> Vec<String> {
    let read = history(of)
        .await
        .into_iter()
        .map(|received| match &received.opened {
            Ok(opened) => opened.text().to_owned(),
            Err(reason) => reason.to_string(),
        });
    read.collect()
}

/// Everything in a conversation, oldest first.
pub async fn history(of: &Conversation) -> Vec<Received> {
    let mut all = Vec::new();
    loop {
        let before = all
            .last()
            .map(|received: &Received| received.message.message_id);
        let page = of.history(before).await.expect("a page");
        if page.is_empty() {
            all.reverse();
            return all;
        }
        all.extend(page);
    }
}

/// An echo.
pub fn echo(builder: AgentBuilder) -> AgentBuilder {
    builder.on_message(async |ctx| ctx.reply(format!("You said: {}", ctx.text())).await)
}

/// Waits until something is true.
pub async fn until(mut is_true: impl FnMut() -> bool) {
    let wait = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("it happens in time");
}
