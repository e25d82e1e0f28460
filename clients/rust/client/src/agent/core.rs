//! The start of an agent: its knowledge, and the parts that work together.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
};

use blindpipe_e2ee::{
    AgentKey, PrivateKeys,
    room::{MAX_MESSAGE_AGE, Marks},
    trust::{Policy, Trust},
};
use blindpipe_protocol::{
    ids::{AgentId, ConversationId, Principal},
    messages::Message,
    text::Secret,
};
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    keys::{check_keys, directory_key},
    outbox::Outbox,
    tool_calls::ToolCalls,
    turns::{BusyPolicy, Turns},
};
use crate::{
    Clock, Error, InboxEvent, Result, Server, Store,
    hooks::{Hook, Hooks, NO_STORE, warn_loudly},
    session::{Keys, Session, SessionParts, principal},
    shared_store::{Saved, SharedStore, restored, save_changed, take_news},
    store::{Entries, Handled},
    transport::{Bearer, Call, Http, Socket},
};

const NO_KEY: Error = Error::Usage(
    "the agent has no key: set BLINDPIPE_KEY, or say that it speaks in clear \
     (BLINDPIPE_PLAINTEXT=allow, allow_plaintext())",
);

/// The description of an agent.
pub(super) struct Config {
    pub(super) server: Server,
    pub(super) agent_id: AgentId,
    pub(super) token: Secret,
    /// Newest first; none speaks clear, if that is allowed.
    pub(super) keys: Vec<AgentKey>,
    pub(super) clear_allowed: bool,
    pub(super) store: Option<Kept>,
    pub(super) policy: Policy,
    pub(super) max_message_age: Option<u64>,
    pub(super) busy_policy: BusyPolicy,
    pub(super) manifest: Option<Value>,
    pub(super) hooks: Hooks,
    pub(super) clock: Clock,
}

/// Where an agent keeps what it learns.
#[derive(Clone)]
pub(super) enum Kept {
    /// A store that no other process has.
    Alone(Arc<dyn Store>),
    /// A store of several processes.
    Shared(Arc<dyn SharedStore>),
}

/// A started agent.
pub(crate) struct Core {
    pub(super) agent_id: AgentId,
    pub(super) token: Secret,
    pub(super) http: Http,
    pub(super) session: Session,
    pub(super) tool_calls: ToolCalls,
    pub(super) turns: Turns,
    pub(super) hooks: Hooks,
    pub(super) clear_allowed: bool,
    /// The socket, while a run holds one.
    pub(super) socket: Mutex<Option<Arc<Socket>>>,
    /// The last look whether the key is about to end, Unix milliseconds.
    pub(super) key_checked_at: AtomicU64,
    store: Option<Kept>,
    /// Handled messages that the store does not have yet.
    unsaved: Mutex<Vec<Handled>>,
    /// Held while anything is stored: nobody acknowledges what somebody else still writes.
    saving: Mutex<()>,
}

struct AgentToken(Secret);

impl Bearer for AgentToken {
    fn token(&self) -> BoxFuture<'_, Result<Option<String>>> {
        let token = self.0.expose().to_owned();
        std::future::ready(Ok(Some(token))).boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<bool>> {
        std::future::ready(Ok(false)).boxed()
    }
}

impl Core {
    pub(super) async fn start(config: &Config) -> Result<Arc<Self>> {
        if config.keys.is_empty() && !config.clear_allowed {
            return Err(NO_KEY);
        }
        let (agent_id, hooks) = (config.agent_id, config.hooks.clone());
        let bearer = Arc::new(AgentToken(config.token.clone()));
        let client = config.server.http_client()?;
        let http = Http::new(client, config.server.url(), hooks.clone(), Some(bearer));
        publish_manifest(&http, config).await?;
        let held = config.keys.iter().map(AgentKey::keys).collect();
        let keys = check_keys(&http, agent_id, held, &config.clock).await?;
        let (trust, marks, handled) = load(config, &keys)?;
        let me = Principal::Agent(agent_id);
        let opening = keys.iter().map(Into::into).collect();
        let own: Vec<_> = keys.iter().map(directory_key).collect();
        let signer = keys.into_iter().next();
        let clear_allowed = config.clear_allowed;
        let session = Session::new(SessionParts {
            http: http.clone(),
            me,
            keys: signer.map(|signer| Keys { signer, opening }),
            trust,
            marks,
            handled,
            clear_allowed,
            max_message_age: config.max_message_age,
            hooks: hooks.clone(),
            clock: config.clock.clone(),
        });
        session.pin(me, &own, None);
        Ok(Arc::new(Self {
            agent_id,
            token: config.token.clone(),
            http,
            session,
            tool_calls: ToolCalls::default(),
            turns: Turns::new(config.busy_policy),
            hooks,
            clear_allowed,
            socket: Mutex::default(),
            key_checked_at: config.clock.now_ms().into(),
            store: config.store.clone(),
            unsaved: Mutex::default(),
            saving: Mutex::default(),
        }))
    }

    pub(super) fn outbox(&self) -> Outbox<'_> {
        Outbox {
            http: &self.http,
            agent_id: self.agent_id,
            session: &self.session,
            clear_allowed: self.clear_allowed,
        }
    }

    pub(super) fn socket(&self) -> Option<Arc<Socket>> {
        let socket = self.socket.lock().clone();
        socket.filter(|socket| socket.is_ready())
    }

    /// The message was handled. The next save stores that, before the message is acknowledged.
    pub(super) async fn remember(&self, message: &Message, sent_at: Option<u64>) {
        let handled = self.session.remember(message, sent_at).await;
        if self.store.is_some() {
            self.unsaved.lock().extend(handled);
        }
    }

    /// Takes over what other processes have stored, before something is done in a conversation; false
    /// if it could not be read.
    pub(super) fn enter(&self, conversation_id: Option<ConversationId>) -> bool {
        let Some(Kept::Shared(store)) = &self.store else {
            return true;
        };
        // News that are older than what a save takes over would go back behind it.
        let _saving = self.saving.lock();
        take_news(&**store, &self.session, &self.hooks, conversation_id)
    }

    /// As [`Self::enter`], for what is done outside of a handler's own conversation.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub(super) fn look_up(&self, conversation_id: Option<ConversationId>) -> Result<()> {
        if self.enter(conversation_id) {
            return Ok(());
        }
        let failed = std::io::Error::other("the shared store could not be read");
        Err(Error::Store(failed))
    }

    /// Reads the keys that an event says have changed.
    pub(super) async fn read_changed_keys(&self, event: &InboxEvent) {
        if let Some(of) = self.session.changed_keys(event) {
            self.session.read_changed_keys(of).await;
        }
    }

    /// Keeps pins, marks and handled messages where the developer said. A failure is told to the
    /// hook, and what was not kept is kept by the next save. A save that nobody waits for any more
    /// ends all the same.
    pub(super) async fn save(self: &Arc<Self>) -> bool {
        if self.store.is_none() || self.is_saved() {
            return true;
        }
        let core = self.clone();
        // A store waits for the disk or for a server, and other tasks have this thread too.
        let saved = tokio::task::spawn_blocking(move || core.save_now());
        saved.await.unwrap_or(false)
    }

    /// Whether nothing is to be stored, and nothing is being stored.
    fn is_saved(&self) -> bool {
        let is_idle = self.saving.try_lock().is_some();
        is_idle && self.unsaved.lock().is_empty() && !self.session.is_dirty()
    }

    fn save_now(&self) -> bool {
        let Some(store) = &self.store else {
            return true;
        };
        let _saving = self.saving.lock();
        let handled = self.unsaved.lock().clone();
        if !handled.is_empty() {
            let added = match store {
                Kept::Alone(store) => store.add_handled(&handled),
                Kept::Shared(store) => store.add_handled(&handled),
            };
            if added.is_err() {
                self.hooks.call(&Hook::StoreFailed);
                return false;
            }
            // Others were added behind them meanwhile.
            self.unsaved.lock().drain(..handled.len());
        }
        if !self.session.take_dirty() {
            return true;
        }
        match store {
            Kept::Alone(store) => {
                let keep = |entries: &Entries| store.save_entries(entries).map(|()| Saved::Kept);
                let kept = self.session.keep_changed(keep);
                if kept.is_err() {
                    self.hooks.call(&Hook::StoreFailed);
                }
                kept.is_ok()
            }
            Kept::Shared(store) => save_changed(&**store, &self.session, &self.hooks),
        }
    }
}

/// Says to the service what this program can do, unless the service knows it.
async fn publish_manifest(http: &Http, config: &Config) -> Result<()> {
    let Some(manifest) = &config.manifest else {
        return Ok(());
    };
    let path = format!("/agents/{}", config.agent_id);
    let shown: Value = http.data(Call::get(path.clone())).await?;
    if shown.get("manifest") != Some(manifest) {
        let call = Call::patch(path, &json!({ "manifest": manifest }));
        http.data::<Value>(call.repeatable()).await?;
    }
    Ok(())
}

type Loaded = (Trust, HashMap<ConversationId, Marks>, Vec<Handled>);

/// The knowledge of earlier runs, and the messages that may come again: none older than a handler
/// would be given.
fn load(config: &Config, keys: &[PrivateKeys]) -> Result<Loaded> {
    let me = principal(Principal::Agent(config.agent_id));
    let own = keys.iter().map(PrivateKeys::key_id);
    let max_age = config.max_message_age.unwrap_or(MAX_MESSAGE_AGE);
    let since = config.clock.now_ms().saturating_sub(max_age);
    match &config.store {
        None => {
            if !keys.is_empty() {
                warn_loudly(NO_STORE);
            }
            let trust = Trust::new(me, config.policy, own);
            Ok((trust, HashMap::new(), Vec::new()))
        }
        Some(Kept::Shared(store)) => {
            let news = store.load(since).map_err(Error::Store)?;
            let (trust, marks) = restored(news.entries, me, config.policy, own)?;
            Ok((trust, marks, news.handled))
        }
        Some(Kept::Alone(store)) => {
            let handled = store.load_handled(since).map_err(Error::Store)?;
            let (mut trust, mut marks) = (Trust::new(me, config.policy, own), HashMap::new());
            let mut refused = None;
            let mut take = |entries: Entries| {
                for (name, entry) in &entries.pins {
                    if let Err(error) = trust.take_over(name, entry) {
                        refused = Some(error);
                    }
                }
                let found = entries.marks.iter();
                marks.extend(found.filter_map(|(id, marks)| Some((*id, Marks::restore(marks)?))));
            };
            store.load_entries(&mut take).map_err(Error::Store)?;
            match refused {
                Some(error) => Err(error.into()),
                None => Ok((trust, marks, handled)),
            }
        }
    }
}
