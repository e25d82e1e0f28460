//! A person's side: devices and their keys, conversations, tool calls, events.

mod account;
mod agents;
mod approvals;
mod builder;
mod calls;
mod contacts;
mod conversation;
mod devices;
mod event;
mod events;
mod kept;
mod keys;
mod profile;
mod rotation;
mod sessions;
mod state;
mod streams;
mod timeline;
mod tool_requests;
mod webhooks;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use blindpipe_e2ee::{consent::Consents, trust::Policy};
use blindpipe_protocol::{
    accounts::KeyBackupSummary,
    conversations::{Conversation as Info, OpenConversation, OpenGroup},
    grants::{DecideGrant, Decision, Grant},
    ids::{AgentId, ConversationId, GrantId, Principal, UserId},
    messages::{SendMessage, Sent},
    text::Title,
};
use parking_lot::Mutex;
use serde_json::Value;

use self::{
    account::Account,
    kept::Kept,
    state::{Choices, DeviceKeys},
};
pub use self::{
    approvals::ApprovalRequest,
    builder::{ClientBuilder, Registration},
    conversation::{Conversation, HistoryPage, Received, SendOptions},
    devices::{Devices, Restored},
    event::ClientEvent,
    events::Events,
    sessions::{Proof, Sessions},
    timeline::{Reactions, TimelineItem, TimelineState, timeline},
    tool_requests::ToolRequest,
    webhooks::Webhooks,
};
use crate::{
    Clock, Error, Hook, Result, Server,
    hooks::Hooks,
    session::{Session, principal, raw},
    store::Entries,
    transport::{Call, Http, Socket},
};

/// A person on a device. Its clones are the same client.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    server: Server,
    account: Arc<Account>,
    http: Http,
    hooks: Hooks,
    clock: Clock,
    kept: Option<Kept>,
    policy: Policy,
    is_searchable: bool,
    choices: Mutex<Choices>,
    tool_handlers: HashMap<String, tool_requests::ToolHandler>,
    held: Mutex<Held>,
    /// The sends of a conversation, one after the other.
    turns: Mutex<HashMap<ConversationId, Arc<tokio::sync::Mutex<()>>>>,
    /// The socket of the newest [`Client::events`].
    socket: Mutex<Weak<Socket>>,
}

/// This device's keys, and the session that they make possible.
#[derive(Default)]
struct Held {
    keys: Option<DeviceKeys>,
    session: Option<Arc<Session>>,
    /// The learning of earlier runs, until there is a session.
    learned: Entries,
}

impl Client {
    /// Describes a client of the service at `server`.
    pub fn builder(server: impl Into<Server>) -> ClientBuilder {
        ClientBuilder::new(server.into())
    }

    /// The person.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if nobody is signed in.
    pub fn user_id(&self) -> Result<UserId> {
        Ok(self.0.account.identity()?.user_id)
    }

    /// This device.
    ///
    /// # Errors
    ///
    /// As [`Self::user_id`].
    pub fn device_id(&self) -> Result<String> {
        Ok(self.0.account.identity()?.device_id)
    }

    /// The backups of this person, as the sign-in told; none after a resumed session.
    ///
    /// # Errors
    ///
    /// As [`Self::user_id`].
    pub fn key_backup(&self) -> Result<Option<KeyBackupSummary>> {
        Ok(self.0.account.identity()?.key_backup)
    }

    /// Whether this device has keys: made, restored, or of an earlier run.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.0.held.lock().keys.is_some()
    }

    /// The devices of this person, and this device's keys.
    #[must_use]
    pub const fn devices(&self) -> Devices<'_> {
        Devices(self)
    }

    fn http(&self) -> &Http {
        &self.0.http
    }

    async fn access_token(&self) -> Result<Option<String>> {
        self.0.account.access_token().await
    }

    async fn renew(&self) -> Result<bool> {
        use crate::transport::Bearer;
        self.0.account.renew().await
    }

    fn tell(&self, hook: &Hook) {
        self.0.hooks.call(hook);
    }

    /// The session, with what other processes of this device have learned so far.
    fn session(&self) -> Result<Arc<Session>> {
        self.hear();
        let session = self.0.held.lock().session.clone();
        session.ok_or(Error::KeyUnavailable("this device has no keys yet"))
    }

    fn choose_clear(&self, id: ConversationId) -> Result<()> {
        self.choose(|choices, _| choices.clear.insert(id)).map(drop)
    }

    fn is_searchable(&self) -> bool {
        self.0.is_searchable
    }

    fn has_chosen_clear(&self, id: ConversationId) -> bool {
        self.0.choices.lock().clear.contains(&id)
    }

    /// Looks into this device's records of consent, as of now.
    fn consent<T>(
        &self,
        look: impl FnOnce(&mut Consents, blindpipe_e2ee::Principal, u64) -> T,
    ) -> T {
        let me = self.user_id().map_or([0; 16], |id| id.0.into_bytes());
        let me = blindpipe_e2ee::Principal::User(me);
        let mut choices = self.0.choices.lock();
        look(&mut choices.consents, me, self.0.clock.now_ms())
    }

    fn tool_handler(&self, tool: &str) -> Option<tool_requests::ToolHandler> {
        self.0.tool_handlers.get(tool).cloned()
    }

    fn turn(&self, id: ConversationId) -> Arc<tokio::sync::Mutex<()>> {
        self.0.turns.lock().entry(id).or_default().clone()
    }

    /// A conversation of this person.
    #[must_use]
    pub fn conversation(&self, id: ConversationId) -> Conversation {
        Conversation {
            client: self.clone(),
            id,
        }
    }

    /// A page of this person's conversations, latest activity first, and the cursor of the next.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn conversations(
        &self,
        cursor: Option<String>,
    ) -> Result<(Vec<Info>, Option<String>)> {
        let call = Call::get("/conversations").query("cursor", cursor);
        let page = self.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    async fn open(&self, what: &OpenConversation) -> Result<Conversation> {
        let info: Info = self.http().data(Call::post("/conversations", what)).await?;
        Ok(self.conversation(info.conversation_id))
    }

    /// Opens the conversation with an agent, or finds it.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn open_agent(&self, agent_id: AgentId) -> Result<Conversation> {
        self.open(&OpenConversation::Agent { agent_id }).await
    }

    /// Opens the conversation with another person, or finds it.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn open_direct(&self, user_id: UserId) -> Result<Conversation> {
        self.open(&OpenConversation::Direct { user_id }).await
    }

    /// Opens a group.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn open_group(&self, title: &str, member_ids: Vec<UserId>) -> Result<Conversation> {
        let group = OpenGroup {
            title: Some(Title(title.to_owned())),
            member_ids,
            ..OpenGroup::default()
        };
        self.open(&OpenConversation::Group(group)).await
    }

    /// Sends a payload as it is, whatever the rules of encryption say. For bridges and tests.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn send_raw(&self, to: ConversationId, payload: &Value) -> Result<Sent> {
        let body = SendMessage::new(raw(payload));
        let call = Call::post(format!("/conversations/{to}/messages"), &body);
        self.http().data(call).await
    }

    /// A page of what agents asked to be allowed, newest first.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn grants(&self, cursor: Option<String>) -> Result<(Vec<Grant>, Option<String>)> {
        let page = self
            .http()
            .page(Call::get("/grants").query("cursor", cursor))
            .await?;
        Ok((page.data, page.next_cursor))
    }

    /// Decides about an agent's request for scopes. It lets no tool run: that takes
    /// [`ToolRequest::approve`], or [`ToolRequest::remember`].
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn decide_grant(&self, id: GrantId, decision: Decision) -> Result<Grant> {
        let body = DecideGrant {
            decision,
            scopes: None,
        };
        let path = format!("/grants/{id}/decision");
        self.http().data(Call::post(path, &body)).await
    }

    /// Takes a grant back, and what this device remembers for its scopes.
    ///
    /// # Errors
    ///
    /// Every refusal of the service; [`Error::Store`].
    pub async fn revoke_grant(&self, id: GrantId) -> Result<Grant> {
        let grant: Grant = self
            .http()
            .data(Call::delete(format!("/grants/{id}")))
            .await?;
        self.withdraw_grant(&grant)?;
        Ok(grant)
    }

    fn withdraw_grant(&self, grant: &Grant) -> Result<()> {
        let conversation = Some(grant.conversation_id);
        for scope in &grant.scopes {
            self.withdraw_in(conversation, grant.agent_id, Some(scope))?;
        }
        Ok(())
    }

    /// Takes back what this device remembers of an agent, in every conversation: for a scope, or for
    /// all. Its next requests ask. True if there was something.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn withdraw(&self, agent_id: AgentId, scope: Option<&str>) -> Result<bool> {
        self.withdraw_in(None, agent_id, scope)
    }

    fn withdraw_in(
        &self,
        conversation: Option<ConversationId>,
        agent_id: AgentId,
        scope: Option<&str>,
    ) -> Result<bool> {
        let agent = principal(Principal::Agent(agent_id));
        let conversation = conversation.map(|id| id.0.into_bytes());
        self.choose(|choices, _| choices.consents.withdraw(agent, scope, conversation))
    }

    /// Events, over a socket that reconnects.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if the authority is no certificate.
    pub fn events(&self) -> Result<Events> {
        let socket = Arc::new(Socket::new(&self.0.server, self.0.hooks.clone())?);
        *self.0.socket.lock() = Arc::downgrade(&socket);
        Ok(Events::new(self.clone(), socket))
    }

    /// Ends the session of this device.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn log_out(&self) -> Result<()> {
        self.0.account.log_out().await
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// The device's own table of tools.
type Tools = BTreeMap<String, blindpipe_e2ee::consent::Tool>;
