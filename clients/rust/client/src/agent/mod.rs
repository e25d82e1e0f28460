//! An agent: what comes is opened and handled in order, and answered exactly once.
//!
//! A run is one future. Whoever drops it has the effect of a crash: no event is lost, and no reply
//! is doubled when the agent runs again.

mod context;
mod core;
mod dispatcher;
mod handlers;
mod inbox;
mod outbox;
mod stream;
mod tool_calls;
mod transports;
mod webhook;

use std::{
    env,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use blindpipe_e2ee::{AgentKey, KeyId, trust::Policy};
use blindpipe_protocol::{
    grants::{Grant, RequestGrant},
    ids::{AgentId, ConversationId, Principal},
    text::{GrantReason, Scope, Secret},
    webhooks,
};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

pub(crate) use self::core::{restore_marks, store_marks};
pub use self::{
    context::{Answer, Context, Question, SendOptions},
    handlers::Next,
    stream::MessageStream,
    tool_calls::{CallResult, CallStatus, ToolCall},
    webhook::{Webhook, WebhookAnswer, verify},
};
use self::{
    core::{Config, Core},
    handlers::{Handlers, MESSAGE, boxed},
    inbox::{Inbox, Pace},
    transports::SocketReader,
};
use crate::{
    Clock, Error, FileStore, Hook, Result, Server, Store,
    hooks::Hooks,
    transport::{Call, Socket, rng},
};

const DEFAULT_CONCURRENCY: usize = 8;
const DEFAULT_RETRY_DELAYS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(25),
    Duration::from_secs(125),
];

/// A new `BLINDPIPE_KEY`. The agent's first start registers it.
#[must_use]
pub fn generate_key() -> String {
    AgentKey::random(&mut rng()).to_text().to_string()
}

/// The way by which events come to a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// A socket that comes back.
    #[default]
    Socket,
    /// Long polls, for cron and serverless.
    Poll,
}

/// An agent. Its clones are the same agent.
#[derive(Clone)]
pub struct Agent(Arc<Inner>);

struct Inner {
    config: Config,
    handlers: Handlers,
    pace: Pace,
    transport: Transport,
    standby: Arc<AtomicBool>,
    started: OnceCell<Arc<Core>>,
    reader: Mutex<Option<Arc<SocketReader>>>,
    stopping: CancellationToken,
}

/// An agent that is being described.
pub struct AgentBuilder {
    config: Config,
    handlers: Handlers,
    pace: Pace,
    transport: Transport,
    standby: bool,
}

impl Agent {
    /// Describes an agent of the service at `server`. Without a key it speaks clear.
    pub fn builder(
        server: impl Into<Server>,
        agent_id: AgentId,
        token: impl Into<String>,
    ) -> AgentBuilder {
        AgentBuilder {
            config: Config {
                server: server.into(),
                agent_id,
                token: Secret(token.into()),
                keys: Vec::new(),
                clear_allowed: false,
                store: None,
                policy: Policy::default(),
                max_message_age: None,
                hooks: Hooks::default(),
                clock: Clock::default(),
            },
            handlers: Handlers::default(),
            pace: Pace {
                concurrency: DEFAULT_CONCURRENCY,
                retry_delays: DEFAULT_RETRY_DELAYS.into(),
                stops_at_dead_letter: false,
            },
            transport: Transport::Socket,
            standby: false,
        }
    }

    /// Reads `BLINDPIPE_URL`, `_AGENT_ID`, `_TOKEN`, `_KEY`, `_PINS` (a file) and `_CA` (a file).
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for what is missing or malformed.
    pub fn from_env() -> Result<AgentBuilder> {
        let optional = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let url = optional("BLINDPIPE_URL").ok_or(Error::Usage("BLINDPIPE_URL is not set"))?;
        let id = optional("BLINDPIPE_AGENT_ID").and_then(|id| id.parse().ok());
        let id = id.ok_or(Error::Usage("BLINDPIPE_AGENT_ID is no id of an agent"))?;
        let token = optional("BLINDPIPE_TOKEN");
        let token = token.ok_or(Error::Usage("BLINDPIPE_TOKEN is not set"))?;
        let mut server = Server::new(url);
        if let Some(path) = optional("BLINDPIPE_CA") {
            let pem = std::fs::read(path).map_err(Error::other)?;
            server = server.with_authority(pem);
        }
        let mut builder = Self::builder(server, id, token);
        if let Some(keys) = optional("BLINDPIPE_KEY") {
            builder = builder.key(&keys)?;
        }
        if let Some(path) = optional("BLINDPIPE_PINS") {
            builder = builder.store(FileStore::new(PathBuf::from(path)));
        }
        Ok(builder)
    }

    /// The agent's id.
    #[must_use]
    pub fn id(&self) -> AgentId {
        self.0.config.agent_id
    }

    fn clock(&self) -> &Clock {
        &self.0.config.clock
    }

    fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    async fn start(&self) -> Result<Arc<Core>> {
        let start = || Box::pin(Core::start(&self.0.config));
        self.0.started.get_or_try_init(start).await.cloned()
    }

    /// Checks token and key, and registers a first key, without handling anything.
    ///
    /// # Errors
    ///
    /// `AGENT_KEYS_MISMATCH` if the agent has another key; a key is never replaced in silence.
    pub async fn check(&self) -> Result<()> {
        self.start().await.map(drop)
    }

    /// The tap: a person behind this agent takes the key for that principal's. False if the key was
    /// never shown.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub async fn trust(&self, principal: Principal, key: KeyId) -> Result<bool> {
        let core = self.start().await?;
        let done = core.session.confirm(principal, key);
        core.save();
        Ok(done)
    }

    /// Runs until SIGTERM, Ctrl-C or [`Self::stop`]; finishes what it began.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if the service forbids it, a refusal of the service that no repeat changes,
    /// or that of a handler if it is to stop the agent.
    pub async fn run(&self) -> Result<()> {
        let signals = async {
            stop_signal().await;
            self.stop();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = Box::pin(self.run_until_stopped()) => ended,
            () = signals => Ok(()),
        }
    }

    /// Runs until [`Self::stop`], and leaves signals to the program.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub async fn run_until_stopped(&self) -> Result<()> {
        let core = self.start().await?;
        let stopping = self.0.stopping.clone();
        let (handlers, pace) = (self.0.handlers.clone(), self.0.pace.clone());
        let inbox = Inbox::new(core.clone(), handlers, pace, stopping.clone());
        if self.0.transport == Transport::Poll {
            return Box::pin(transports::poll(&core, &inbox, &stopping)).await;
        }
        let (server, hooks) = (&self.0.config.server, self.0.config.hooks.clone());
        let socket = Arc::new(Socket::new(server, hooks)?);
        *core.socket.lock() = Some(socket.clone());
        let reader = Arc::new(SocketReader {
            core: core.clone(),
            inbox: Arc::new(inbox),
            socket,
            standby: self.0.standby.clone(),
            left: AtomicBool::default(),
        });
        *self.0.reader.lock() = Some(reader.clone());
        let ended = Box::pin(reader.run()).await;
        *core.socket.lock() = None;
        *self.0.reader.lock() = None;
        ended
    }

    /// Takes no more events, lets handlers end, acknowledges, and closes.
    pub fn stop(&self) {
        self.0.stopping.cancel();
    }

    /// Ends a standby: this process handles the events from the last acknowledgement on.
    pub fn activate(&self) {
        match &*self.0.reader.lock() {
            Some(reader) => reader.activate(),
            None => self.0.standby.store(false, Ordering::Relaxed),
        }
    }

    /// Asks the person of a conversation for scopes of the agent's manifest. Repeated, it answers
    /// another request.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn request_grant(
        &self,
        conversation_id: ConversationId,
        scopes: Vec<String>,
        reason: Option<String>,
    ) -> Result<Grant> {
        let core = self.start().await?;
        let body = RequestGrant {
            conversation_id,
            user_id: None,
            scopes: scopes.into_iter().map(Scope).collect(),
            reason: reason.map(GrantReason),
            ttl_seconds: None,
        };
        let path = format!("/agents/{}/grants/request", self.id());
        core.http.data(Call::post(path, &body)).await
    }

    /// Has events delivered to `url`, signed with `secret`. The receiver must be there: the service
    /// asks it at once.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn set_webhook(&self, url: &str, secret: &str) -> Result<webhooks::Webhook> {
        let core = self.start().await?;
        let body = serde_json::json!({ "url": url, "secret": secret });
        let path = format!("/agents/{}/webhook", self.id());
        core.http.data(Call::put(path, &body)).await
    }

    /// A receiver of deliveries, signed with `secret`.
    #[must_use]
    pub fn webhook(&self, secret: impl Into<String>) -> Webhook {
        Webhook {
            agent: self.clone(),
            secret: Secret(secret.into()),
        }
    }
}

impl AgentBuilder {
    /// `bpk_…`, several with commas, newest first.
    ///
    /// # Errors
    ///
    /// `malformed`.
    pub fn key(mut self, keys: &str) -> Result<Self> {
        self.config.keys = AgentKey::parse_all(keys)?;
        Ok(self)
    }

    /// Handles what comes in clear, and answers it in clear.
    #[must_use]
    pub fn allow_plaintext(mut self) -> Self {
        self.config.clear_allowed = true;
        self
    }

    /// Where the agent keeps what it learns about others' keys. Without it, each start is a first
    /// contact.
    #[must_use]
    pub fn store(mut self, store: impl Store) -> Self {
        self.config.store = Some(Arc::new(store));
        self
    }

    /// The treatment of first keys.
    #[must_use]
    pub fn trust_policy(mut self, policy: Policy) -> Self {
        self.config.policy = policy;
        self
    }

    /// Conversations that are handled at once; 8 without it.
    #[must_use]
    pub fn concurrency(mut self, conversations: usize) -> Self {
        self.pace.concurrency = conversations.max(1);
        self
    }

    /// The age after which a signed message is handled no more; 31 days without it.
    #[must_use]
    pub fn max_message_age(mut self, age: Duration) -> Self {
        self.config.max_message_age = u64::try_from(age.as_millis()).ok();
        self
    }

    /// Waits before a failed handler runs again; 1, 5, 25 and 125 s without it.
    #[must_use]
    pub fn retry_delays(mut self, delays: impl IntoIterator<Item = Duration>) -> Self {
        self.pace.retry_delays = delays.into_iter().collect();
        self
    }

    /// Stops the agent after a handler's last try. Without it, the event counts as handled.
    #[must_use]
    pub fn stop_at_dead_letter(mut self) -> Self {
        self.pace.stops_at_dead_letter = true;
        self
    }

    /// Tells what happens to this client. It never gets a secret or a text.
    #[must_use]
    pub fn on_hook(mut self, hook: impl Fn(&Hook) + Send + Sync + 'static) -> Self {
        self.config.hooks = Hooks::new(hook);
        self
    }

    /// Another clock than the system's, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.config.clock = clock;
        self
    }

    /// The way by which events come.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Keeps keys warm and handles nothing until [`Agent::activate`].
    #[must_use]
    pub fn standby(mut self) -> Self {
        self.standby = true;
        self
    }

    /// Handles messages. Handlers of an event run in their order.
    #[must_use]
    pub fn on_message<T, F>(self, handler: impl Fn(Context) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.on(MESSAGE, handler)
    }

    /// Handles any event of the catalogue by its name.
    #[must_use]
    pub fn on<T, F>(
        mut self,
        event: &str,
        handler: impl Fn(Context) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.handlers.add(event, boxed(handler));
        self
    }

    /// Handles answers to the questions with this tag.
    #[must_use]
    pub fn on_answer<T, F>(
        mut self,
        tag: &str,
        handler: impl Fn(Context) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.handlers.add_answer(tag, boxed(handler));
        self
    }

    /// Wraps a layer around all handlers; the first one is the outermost.
    #[must_use]
    pub fn layer<F>(mut self, layer: impl Fn(Context, Next) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let layer = move |context, next| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(layer(context, next))
        };
        self.handlers.add_layer(Arc::new(layer));
        self
    }

    /// The agent.
    #[must_use]
    pub fn build(self) -> Agent {
        Agent(Arc::new(Inner {
            config: self.config,
            handlers: self.handlers,
            pace: self.pace,
            transport: self.transport,
            standby: Arc::new(AtomicBool::new(self.standby)),
            started: OnceCell::new(),
            reader: Mutex::default(),
            stopping: CancellationToken::new(),
        }))
    }

    /// Builds the agent, and runs it as [`Agent::run`] does.
    ///
    /// # Errors
    ///
    /// As [`Agent::run`].
    pub async fn run(self) -> Result<()> {
        self.build().run().await
    }
}

/// SIGTERM or Ctrl-C.
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
