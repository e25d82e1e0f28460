//! How a person's client begins.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use blindpipe_e2ee::{
    consent::{Sensitivity, Tool},
    trust::Policy,
};
use blindpipe_protocol::{
    accounts::{
        CodeSent, Login, LoginCode, PasswordReset, Register, ResetPassword, Scene, SendCode,
    },
    ids::ChallengeId,
    passkeys::{BeginPasskeyLogin, CompletePasskeyLogin, LoginChallenge},
    text::{DeviceId, DeviceName, DisplayName, EmailAddress, Locale, MailedCode, Platform, Secret},
};
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use super::{
    Client, Held, Inner, Tools,
    account::{Account, Identity, Shared},
    kept::Kept,
    state,
    tool_requests::ToolHandler,
};
use crate::{
    Clock, Content, Error, Hook, Result, Server, Store,
    hooks::{Hooks, NO_STORE, warn_loudly},
    session::raw,
    transport::{Bearer, Http, new_id},
};

/// A client that is being described.
pub struct ClientBuilder {
    server: Server,
    device_id: Option<String>,
    device_name: Option<String>,
    platform: Option<String>,
    policy: Policy,
    is_searchable: bool,
    store: Option<Arc<dyn Store>>,
    tools: Tools,
    tool_handlers: HashMap<String, ToolHandler>,
    hooks: Hooks,
    clock: Clock,
}

/// A new account.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The address that the code was mailed to.
    pub email: String,
    /// The mailed code.
    pub code: String,
    /// The account's password, which the server sees.
    pub password: String,
    /// The name that others see.
    pub display_name: String,
    /// The token of a solved human check.
    pub turnstile_token: String,
}

impl ClientBuilder {
    pub(super) fn new(server: Server) -> Self {
        Self {
            server,
            device_id: None,
            device_name: None,
            platform: None,
            policy: Policy::default(),
            is_searchable: false,
            store: None,
            tools: Tools::new(),
            tool_handlers: HashMap::new(),
            hooks: Hooks::default(),
            clock: Clock::default(),
        }
    }

    /// This device's own id, which must outlive a reinstallation; a new one without it.
    #[must_use]
    pub fn device_id(mut self, id: impl Into<String>) -> Self {
        self.device_id = Some(id.into());
        self
    }

    /// The person's name for this device.
    #[must_use]
    pub fn device_name(mut self, name: impl Into<String>) -> Self {
        self.device_name = Some(name.into());
        self
    }

    /// The device's platform.
    #[must_use]
    pub fn platform(mut self, platform: impl Into<String>) -> Self {
        self.platform = Some(platform.into());
        self
    }

    /// The treatment of first keys.
    #[must_use]
    pub fn trust_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sends tell the service keyed hashes of their words, and [`super::Conversation::search`] finds
    /// them. Then the service sees which messages of a conversation share a word, and how often.
    #[must_use]
    pub fn searchable(mut self) -> Self {
        self.is_searchable = true;
        self
    }

    /// Where this client keeps its session, its private keys and what it learns. Without it, all
    /// that ends with the process.
    #[must_use]
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// A tool that this device has.
    #[must_use]
    pub fn tool(mut self, name: &str, scope: &str, sensitivity: Sensitivity) -> Self {
        let tool = Tool {
            scope: scope.to_owned(),
            sensitivity,
        };
        self.tools.insert(name.to_owned(), tool);
        self
    }

    /// A tool that this device has, and its handler: [`super::ToolRequest::execute`] runs it with the
    /// name of the tool and the arguments.
    #[must_use]
    pub fn tool_with<F>(
        mut self,
        name: &str,
        scope: &str,
        sensitivity: Sensitivity,
        run: impl Fn(String, Content) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Value>> + Send + 'static,
    {
        let run = move |tool, arguments| -> BoxFuture<'static, Result<Value>> {
            Box::pin(run(tool, arguments))
        };
        self.tool_handlers.insert(name.to_owned(), Arc::new(run));
        self.tool(name, scope, sensitivity)
    }

    /// Tells what happens to this client. It never gets a secret or a text.
    #[must_use]
    pub fn on_hook(mut self, hook: impl Fn(&Hook) + Send + Sync + 'static) -> Self {
        self.hooks = Hooks::new(hook);
        self
    }

    /// Another clock than the system's, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Mails a code.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn send_code(&self, email: &str, scene: Scene, turnstile_token: &str) -> Result<()> {
        let account = Account::new(&self.server, self.hooks.clone())?;
        let body = SendCode {
            email: EmailAddress::from(email),
            scene,
            turnstile_token: Secret::from(turnstile_token),
        };
        account.call::<CodeSent>("/auth/send-code", &body).await?;
        Ok(())
    }

    /// Makes an account with a mailed code.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn register(self, new: Registration) -> Result<Client> {
        let password = new.password.clone();
        let body = Register {
            email: EmailAddress(new.email),
            code: MailedCode(new.code),
            account_password: Secret(new.password),
            display_name: DisplayName(new.display_name),
            device_locale: Locale("en".to_owned()),
            turnstile_token: Secret(new.turnstile_token),
            device_id: Some(self.own_device()),
            device_name: self.device_name.clone().map(DeviceName),
            platform: self.platform.clone().map(Platform),
        };
        let client = self.sign_in("/auth/register", &body).await?;
        client.0.account.signed_in_by(&password);
        Ok(client)
    }

    /// Signs in with a password.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn login(self, email: &str, password: &str, turnstile_token: &str) -> Result<Client> {
        let body = Login {
            email: EmailAddress::from(email),
            account_password: Secret::from(password),
            turnstile_token: Secret::from(turnstile_token),
            device_id: Some(self.own_device()),
            device_name: self.device_name.clone().map(DeviceName),
            platform: self.platform.clone().map(Platform),
        };
        let client = self.sign_in("/auth/login", &body).await?;
        client.0.account.signed_in_by(password);
        Ok(client)
    }

    /// Signs in with a mailed code.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn login_with_code(self, email: &str, code: &str) -> Result<Client> {
        let body = LoginCode {
            email: EmailAddress::from(email),
            code: MailedCode(code.to_owned()),
            turnstile_token: None,
            device_id: Some(self.own_device()),
            device_name: self.device_name.clone().map(DeviceName),
            platform: self.platform.clone().map(Platform),
        };
        self.sign_in("/auth/login-code", &body).await
    }

    /// Begins a sign-in with a passkey: its `public_key` is what a browser's `credentials.get` takes.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn begin_passkey_login(
        &self,
        turnstile_token: Option<&str>,
    ) -> Result<LoginChallenge> {
        let account = Account::new(&self.server, self.hooks.clone())?;
        let turnstile_token = turnstile_token.map(Secret::from);
        let body = BeginPasskeyLogin { turnstile_token };
        account.call("/auth/passkey/begin", &body).await
    }

    /// Signs in with a passkey: `credential` is an authenticator's answer as JSON.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn login_with_passkey(
        self,
        challenge_id: ChallengeId,
        credential: &Value,
    ) -> Result<Client> {
        let body = CompletePasskeyLogin {
            challenge_id,
            credential: raw(credential),
            turnstile_token: None,
            device_id: Some(self.own_device()),
            device_name: self.device_name.clone().map(DeviceName),
            platform: self.platform.clone().map(Platform),
        };
        self.sign_in("/auth/passkey/complete", &body).await
    }

    /// Sets a password by a code that was mailed for the scene `reset`. Every session ends.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn reset_password(
        &self,
        email: &str,
        code: &str,
        new_password: &str,
    ) -> Result<PasswordReset> {
        let account = Account::new(&self.server, self.hooks.clone())?;
        let body = ResetPassword {
            email: EmailAddress::from(email),
            code: MailedCode(code.to_owned()),
            new_account_password: Secret::from(new_password),
            turnstile_token: None,
        };
        account.call("/auth/reset-password", &body).await
    }

    /// Goes on with the session and the keys in the store; none if it holds none, or if the session
    /// has ended. While the service is away, the session goes on unproven.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], and what keeps the session from being renewed for good.
    pub async fn resume(self) -> Result<Option<Client>> {
        let account = Account::new(&self.server, self.hooks.clone())?;
        let stored = match &self.store {
            Some(store) => state::restore_identity(&state::load(&**store)?["session"]),
            None => None,
        };
        let Some((identity, cookie)) = stored else {
            return Ok(None);
        };
        account.adopt(identity.clone(), cookie);
        // The keys are held before anything is stored anew.
        let client = self.client(account, &identity)?;
        match client.0.account.refresh().await {
            Ok(is_live) => Ok(is_live.then_some(client)),
            // Only a refusal ends a session: the next call asks again.
            Err(error) if error.is_retryable() => Ok(Some(client)),
            Err(error) => Err(error),
        }
    }

    fn own_device(&self) -> DeviceId {
        let new = || blindpipe_e2ee::ids::ulid(new_id(&self.clock).into_bytes());
        DeviceId(self.device_id.clone().unwrap_or_else(new))
    }

    async fn sign_in(self, path: &str, body: &(impl Serialize + ?Sized)) -> Result<Client> {
        let account = Account::new(&self.server, self.hooks.clone())?;
        let identity = account.sign_in(path, body).await?;
        let client = self.client(account, &identity)?;
        client.save_session()?;
        Ok(client)
    }

    /// The client of a person on a device, with what earlier runs have stored.
    fn client(self, account: Arc<Account>, identity: &Identity) -> Result<Client> {
        let bearer: Arc<dyn Bearer> = account.clone();
        let (server, hooks) = (self.server, self.hooks);
        let http = server.http_client()?;
        let http = Http::new(http, server.url(), hooks.clone(), Some(bearer));
        let kept = self.store.map(|store| Kept::new(store, identity));
        let (document, mut learned) = match &kept {
            Some(kept) => kept.load(identity)?,
            None => {
                warn_loudly(NO_STORE);
                Default::default()
            }
        };
        let mut choices = state::Choices::restore(self.tools, &document)?;
        for name in std::mem::take(&mut learned.begun) {
            choices.consents.began_before(name);
        }
        let client = Client(Arc::new(Inner {
            server,
            account,
            http,
            hooks,
            clock: self.clock,
            kept,
            policy: self.policy,
            is_searchable: self.is_searchable,
            choices: Mutex::new(choices),
            tool_handlers: self.tool_handlers,
            held: Mutex::new(Held {
                learned,
                ..Held::default()
            }),
            turns: Mutex::default(),
            socket: Mutex::default(),
        }));
        client.0.account.share(Sharing(Arc::downgrade(&client.0)));
        let keys = &document["keys"];
        if !keys.is_null() {
            client.hold(state::DeviceKeys::restore(keys)?)?;
        }
        Ok(client)
    }
}

/// The store of a client, as far as it lives.
struct Sharing(Weak<Inner>);

impl Shared for Sharing {
    fn lock(&self) -> BoxFuture<'_, Result<Box<dyn Send>>> {
        let inner = self.0.upgrade();
        let lock = async {
            let lock = tokio::task::spawn_blocking(move || {
                let kept = inner.as_ref().and_then(|inner| inner.kept.as_ref());
                kept.map_or_else(|| Ok(Box::new(()) as _), Kept::lock_renewal)
            });
            lock.await.map_err(Error::other)?
        };
        lock.boxed()
    }

    fn cookie(&self, of: &Identity) -> Option<String> {
        let document = self.0.upgrade()?.kept.as_ref()?.document(of).ok()?;
        let (_, cookie) = state::restore_identity(&document["session"])?;
        Some(cookie)
    }

    fn changed(&self) {
        if let Some(inner) = self.0.upgrade() {
            let client = Client(inner);
            if client.save_session().is_err() {
                client.tell(&Hook::StoreFailed);
            }
        }
    }
}
