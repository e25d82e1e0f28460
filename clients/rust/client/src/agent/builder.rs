//! How an agent is described.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use blindpipe_e2ee::{AgentKey, trust::Policy};
use blindpipe_protocol::{agents::Manifest, ids::AgentId, text::Secret};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{
    Agent, Context, Inner, Next, Transport,
    core::{Config, Kept},
    handlers::{Handlers, MESSAGE, boxed},
    inbox::Pace,
    turns::{BusyPolicy, STOP},
    webhook::Handling,
};
use crate::{Clock, Hook, Result, Server, SharedStore, Store, hooks::Hooks};

const DEFAULT_CONCURRENCY: usize = 8;
const DEFAULT_GROUP: &str = "default";
const DEFAULT_RETRY_DELAYS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(25),
    Duration::from_secs(125),
];

/// An agent that is being described.
pub struct AgentBuilder {
    config: Config,
    handlers: Handlers,
    pace: Pace,
    transport: Transport,
    standby: bool,
    group: Option<String>,
}

impl AgentBuilder {
    pub(super) fn new(server: Server, agent_id: AgentId, token: Secret) -> Self {
        Self {
            config: Config {
                server,
                agent_id,
                token,
                keys: Vec::new(),
                clear_allowed: false,
                store: None,
                policy: Policy::default(),
                max_message_age: None,
                busy_policy: BusyPolicy::default(),
                manifest: None,
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
            group: None,
        }
    }

    /// `bpk_…`, several with commas, newest first.
    ///
    /// # Errors
    ///
    /// `malformed`.
    pub fn key(mut self, keys: &str) -> Result<Self> {
        self.config.keys = AgentKey::parse_all(keys)?;
        Ok(self)
    }

    /// Handles what comes in clear, and answers it in clear. An agent without a key starts no other
    /// way. Where an envelope was seen, nothing in clear is handled or sent.
    #[must_use]
    pub fn allow_plaintext(mut self) -> Self {
        self.config.clear_allowed = true;
        self
    }

    /// Where the agent keeps what it learns about others' keys. Without it, each start is a first
    /// contact.
    #[must_use]
    pub fn store(mut self, store: impl Store) -> Self {
        self.config.store = Some(Kept::Alone(Arc::new(store)));
        self
    }

    /// Where several processes of the agent keep what they learn. Each of them makes a value of its
    /// own for the same place.
    #[must_use]
    pub fn shared_store(mut self, store: impl SharedStore) -> Self {
        self.config.store = Some(Kept::Shared(Arc::new(store)));
        self
    }

    /// The manifest, published at the start if it is not what the service has.
    #[must_use]
    pub fn manifest(mut self, manifest: &Manifest) -> Self {
        self.config.manifest = serde_json::to_value(manifest).ok();
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

    /// The fate of a message that comes while a handler runs in its conversation. It waits
    /// without this.
    #[must_use]
    pub fn busy_policy(mut self, policy: BusyPolicy) -> Self {
        self.config.busy_policy = policy;
        self
    }

    /// The age after which a signed message is handled no more; 31 days without it, and at most.
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

    /// Splits the agent's conversations with all processes that run with the same group. It needs
    /// [`Self::shared_store`], and a socket.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.group = Some(self.group.unwrap_or_else(|| DEFAULT_GROUP.to_owned()));
        self
    }

    /// As [`Self::shared`], with another group than `default`: 1 to 64 characters. Each group handles
    /// each event once.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
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

    /// Handles decisions about the approvals with this name, and their ends without one.
    #[must_use]
    pub fn on_decision<T, F>(
        mut self,
        name: &str,
        handler: impl Fn(Context) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.handlers.add_decision(name, boxed(handler));
        self
    }

    /// Told after a person has stopped what ran in a conversation.
    #[must_use]
    pub fn on_stop<T, F>(self, handler: impl Fn(Context) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.on(STOP, handler)
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
            group: self.group,
            handling: Handling::default(),
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
