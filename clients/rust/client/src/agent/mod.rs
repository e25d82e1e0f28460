//! An agent: what comes is opened and handled in order, and answered exactly once.
//!
//! A run is one future. To drop it has the effect of a crash: no event is lost, and no reply is
//! doubled when the agent runs again.
//!
//! Why: ADR 74.

mod approvals;
mod builder;
mod context;
mod core;
mod dispatcher;
mod handlers;
mod inbox;
mod keys;
mod manifest;
mod outbox;
mod questions;
mod raw_events;
mod sends;
mod share;
mod stream;
mod tickets;
mod tool_calls;
mod transports;
mod turns;
mod webhook;

use std::{
    env,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use blindpipe_e2ee::{AgentKey, KeyId};
use blindpipe_protocol::{
    grants::{Grant, RequestGrant},
    ids::{AgentId, ConversationId, MessageId, Principal, UserId},
    text::{GrantReason, Scope, Secret},
    webhooks,
};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

pub use self::{
    approvals::{ApprovalDraft, ApprovalResult},
    builder::AgentBuilder,
    context::{Context, SendOptions},
    handlers::Next,
    questions::{Answer, Question},
    raw_events::{RawEvent, RawEvents},
    stream::MessageStream,
    tool_calls::{CallResult, CallStatus, ToolCall},
    turns::{BusyPolicy, SteerMessage},
    webhook::{Webhook, WebhookAnswer, WebhookSecrets, verify},
};
use self::{
    core::{Config, Core, Kept},
    handlers::Handlers,
    inbox::{Inbox, Pace},
    share::Share,
    transports::{Resyncs, SocketReader},
    webhook::Handling,
};
use crate::{
    Approval, Clock, Error, FileStore, Result, Server,
    transport::{Call, Socket, rng},
};

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
    /// Those with whom this process shares the conversations.
    group: Option<String>,
    started: OnceCell<Arc<Core>>,
    reader: Mutex<Option<Arc<SocketReader>>>,
    /// The deliveries that the webhook handles.
    handling: Handling,
    stopping: CancellationToken,
}

impl Agent {
    /// Describes an agent of the service at `server`. Without a key it starts only if it may speak
    /// in clear ([`AgentBuilder::allow_plaintext`]).
    pub fn builder(
        server: impl Into<Server>,
        agent_id: AgentId,
        token: impl Into<String>,
    ) -> AgentBuilder {
        AgentBuilder::new(server.into(), agent_id, Secret(token.into()))
    }

    /// Reads `BLINDPIPE_URL`, `_AGENT_ID`, `_TOKEN`, `_KEY`, `_PINS` (a file), `_CA` (a file) and
    /// `_PLAINTEXT` (`allow`, or nothing).
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
        match optional("BLINDPIPE_PLAINTEXT").as_deref() {
            Some("allow") => builder = builder.allow_plaintext(),
            Some(_) => return Err(Error::Usage("BLINDPIPE_PLAINTEXT is `allow`, or not set")),
            None => {}
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

    fn handling(&self) -> &Handling {
        &self.0.handling
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
        // Another process may have seen the key.
        core.look_up(None)?;
        let done = core.session.confirm(principal, key);
        core.save().await;
        Ok(done)
    }

    /// Runs until SIGTERM, Ctrl-C or [`Self::stop`]; finishes what it began.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] if the service forbids it, a refusal that no repeat changes, or that of a
    /// handler if it is to stop the agent.
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
        let group = self.0.group.clone();
        if group.is_some() {
            self.check_shared()?;
        }
        let core = self.start().await?;
        let stopping = self.0.stopping.clone();
        let (handlers, pace) = (self.0.handlers.clone(), self.0.pace.clone());
        let share = group.is_some().then(Share::default);
        let inbox = Inbox::new(core.clone(), handlers, pace, stopping.clone(), share);
        if self.0.transport == Transport::Poll {
            return tokio::select! {
                ended = Box::pin(transports::poll(&core, &inbox, &stopping)) => ended,
                () = core.watch_key() => Ok(()),
            };
        }
        let (server, hooks) = (&self.0.config.server, self.0.config.hooks.clone());
        let socket = Arc::new(Socket::new(server, hooks)?);
        *core.socket.lock() = Some(socket.clone());
        let reader = Arc::new(SocketReader {
            core: core.clone(),
            inbox: Arc::new(inbox),
            socket,
            standby: self.0.standby.clone(),
            group,
            learns: AtomicBool::default(),
            left: AtomicBool::default(),
            resyncs: Resyncs::default(),
        });
        *self.0.reader.lock() = Some(reader.clone());
        let ended = tokio::select! {
            ended = Box::pin(reader.run()) => ended,
            () = core.watch_key() => Ok(()),
        };
        *core.socket.lock() = None;
        *self.0.reader.lock() = None;
        ended
    }

    fn check_shared(&self) -> Result<()> {
        let is_standby = self.0.standby.load(Ordering::Relaxed);
        if self.0.transport == Transport::Poll || is_standby {
            return Err(Error::Usage(
                "a shared agent reads a socket, and is no standby",
            ));
        }
        if matches!(self.0.config.store, Some(Kept::Shared(_))) {
            return Ok(());
        }
        // Each process would trust other keys, and handle again what another one has handled.
        Err(Error::Usage(
            "a shared agent needs a store that processes share, such as SharedFolder",
        ))
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

    /// Any call as it is, with the agent's token; answers the body. `path` begins with `/` and may
    /// have a query; `json` is the body.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a method or a path that is none; every refusal of the service.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        json: Option<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let core = self.start().await?;
        core.http.bytes(Call::raw(method, path, json)?).await
    }

    /// A page of this agent's approvals, newest first, and the cursor of the next.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn approvals(
        &self,
        cursor: Option<String>,
    ) -> Result<(Vec<Approval>, Option<String>)> {
        let core = self.start().await?;
        let path = format!("/agents/{}/approvals", self.id());
        let page = core.http.page(Call::get(path).query("cursor", cursor));
        let page = page.await?;
        Ok((page.data, page.next_cursor))
    }

    /// Asks a person for scopes of the agent's manifest in a conversation. A group needs `user`.
    /// Repeated, it answers another request.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn request_grant(
        &self,
        conversation_id: ConversationId,
        user: Option<UserId>,
        scopes: Vec<String>,
        reason: Option<String>,
    ) -> Result<Grant> {
        let core = self.start().await?;
        let body = RequestGrant {
            conversation_id,
            user_id: user,
            scopes: scopes.into_iter().map(Scope).collect(),
            reason: reason.map(GrantReason),
            ttl_seconds: None,
        };
        let path = format!("/agents/{}/grants/request", self.id());
        core.http.data(Call::post(path, &body)).await
    }

    /// Asks people of a conversation for an approval, and answers at once. The decision comes to
    /// the handler of [`AgentBuilder::on_decision`], perhaps days later, in any process. A draft with
    /// a key is one question, however often it is asked.
    ///
    /// # Errors
    ///
    /// As [`Context::reply`].
    pub async fn approve(
        &self,
        conversation_id: ConversationId,
        approval: &ApprovalDraft,
    ) -> Result<Approval> {
        let core = self.start().await?;
        core.look_up(Some(conversation_id))?;
        let id = self.question_id(approval.key.as_deref());
        let now = self.clock().timestamp();
        Box::pin(core.approve(conversation_id, id, now, approval)).await
    }

    /// An approval of this agent, as it stands.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn approval(&self, id: MessageId) -> Result<Approval> {
        self.start().await?.approval(id).await
    }

    /// Takes an approval back that nobody has decided.
    ///
    /// # Errors
    ///
    /// `APPROVAL_CLOSED` if it is decided; every refusal of the service.
    pub async fn withdraw(&self, id: MessageId) -> Result<Approval> {
        self.start().await?.withdraw(id).await
    }

    /// Has events delivered to `url`, signed with `secret`. The receiver must be there: the service
    /// asks it at once.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn set_webhook(&self, url: &str, secret: &str) -> Result<webhooks::Webhook> {
        self.set_batched_webhook(url, secret, 1).await
    }

    /// As [`set_webhook`](Self::set_webhook), with up to `max_events` events in a call, 1 to 50.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn set_batched_webhook(
        &self,
        url: &str,
        secret: &str,
        max_events: u32,
    ) -> Result<webhooks::Webhook> {
        let core = self.start().await?;
        let body = serde_json::json!({ "url": url, "secret": secret, "max_events": max_events });
        let path = format!("/agents/{}/webhook", self.id());
        core.http.data(Call::put(path, &body)).await
    }

    /// A receiver of deliveries, signed with a secret. While the secret is rotated, give both:
    /// `["whsec_new…", "whsec_old…"]`.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a secret of fewer than 24 bytes, such as that of an unset variable.
    pub fn webhook(&self, secrets: impl Into<WebhookSecrets>) -> Result<Webhook> {
        let secrets = secrets.into();
        if !secrets.are_fit() {
            return Err(Error::Usage("a webhook's secret has 24 bytes or more"));
        }
        let agent = self.clone();
        Ok(Webhook { agent, secrets })
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
