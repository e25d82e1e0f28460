//! A person's session: sign-in, the access token of the moment, and its renewal.

use std::{sync::Arc, time::Duration};

use blindpipe_e2ee::backup::AccountPassword;
use blindpipe_protocol::{
    accounts::{KeyBackupSummary, LoggedOut, Refreshed, SignedIn},
    envelope::Data,
    ids::UserId,
};
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderValue, SET_COOKIE};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    Error, Result, Server,
    hooks::Hooks,
    transport::{Answer, Bearer, Call, Http, rng},
};

/// A token is renewed this long before its end.
const RENEW_BEFORE: Duration = Duration::from_secs(30);
const COOKIE: &str = "refresh_token=";

/// Of the sign-in, and never another's.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) user_id: UserId,
    pub(super) device_id: String,
    pub(super) key_backup: Option<KeyBackupSummary>,
}

impl Identity {
    /// Whether both are the same person on the same device.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.user_id == other.user_id && self.device_id == other.device_id
    }
}

#[derive(Default)]
struct State {
    token: Option<(String, Instant)>,
    /// The refresh cookie: name and value.
    cookie: Option<String>,
    /// The cookie that the store had when it was last read.
    stored: Option<String>,
    identity: Option<Identity>,
    /// Of the sign-in, if it was by a password.
    password: Option<AccountPassword>,
}

impl State {
    /// Takes the store's cookie, if another process has written it since the last look. One that
    /// stayed there because a write failed is worth nothing any more.
    fn take_up(&mut self, stored: String) {
        if self.stored.as_ref() != Some(&stored) {
            self.cookie = Some(stored.clone());
            self.stored = Some(stored);
        }
    }
}

pub(super) struct Account {
    /// Without a credential: sign-ins and renewals.
    public: Http,
    state: Mutex<State>,
    renewal: tokio::sync::Mutex<()>,
    /// Other processes may have the same session.
    shared: Mutex<Option<Arc<dyn Shared>>>,
}

/// Where the session is kept, perhaps for several processes. Of two that renew it with the same
/// cookie, the second one looks like a thief.
pub(super) trait Shared: Send + Sync {
    /// Keeps other processes from renewing the session.
    fn lock(&self) -> BoxFuture<'_, Result<Box<dyn Send>>>;

    /// The cookie that is stored for this identity.
    fn cookie(&self, of: &Identity) -> Option<String>;

    /// Stores the session as it is now.
    fn changed(&self);
}

impl Account {
    pub(super) fn new(server: &Server, hooks: Hooks) -> Result<Arc<Self>> {
        let client = server.http_client()?;
        Ok(Arc::new(Self {
            public: Http::new(client, server.url(), hooks, None),
            state: Mutex::default(),
            renewal: tokio::sync::Mutex::default(),
            shared: Mutex::default(),
        }))
    }

    pub(super) fn share(&self, shared: impl Shared + 'static) {
        *self.shared.lock() = Some(Arc::new(shared));
    }

    /// The identity of the person who is signed in.
    pub(super) fn identity(&self) -> Result<Identity> {
        let identity = self.state.lock().identity.clone();
        identity.ok_or(Error::Usage("nobody is signed in"))
    }

    pub(super) fn cookie(&self) -> Option<String> {
        self.state.lock().cookie.clone()
    }

    /// Takes up the session of an earlier run.
    pub(super) fn adopt(&self, identity: Identity, cookie: String) {
        let mut state = self.state.lock();
        state.identity = Some(identity);
        state.take_up(cookie);
    }

    /// A call that needs no credential.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<T> {
        let answer = self.send(Call::post(path, body)).await?;
        Ok(answer.json::<Data<T>>()?.data)
    }

    async fn send(&self, call: Call) -> Result<Answer> {
        let mut headers = HeaderMap::new();
        let cookie = self.cookie();
        if let Some(cookie) = cookie.and_then(|it| HeaderValue::from_str(&it).ok()) {
            headers.insert("cookie", cookie);
        }
        let answer = self.public.send(call.headers(headers)).await?;
        let cookies = answer.headers.get_all(SET_COOKIE).iter();
        let mut cookies = cookies
            .filter_map(|cookie| cookie.to_str().ok()?.split(';').next())
            .filter(|cookie| cookie.starts_with(COOKIE));
        if let Some(cookie) = cookies.next_back() {
            self.state.lock().cookie = Some(cookie.to_owned());
        }
        Ok(answer)
    }

    /// Any of the sign-ins: they all answer alike.
    pub(super) async fn sign_in(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<Identity> {
        let signed_in: SignedIn = self.call(path, body).await?;
        let identity = Identity {
            user_id: signed_in.user_id,
            device_id: signed_in.device_id,
            key_backup: Some(signed_in.key_backup),
        };
        self.take(
            signed_in.access_token.expose(),
            signed_in.expires_in_seconds,
        );
        self.state.lock().identity = Some(identity.clone());
        Ok(identity)
    }

    /// The sign-in was by this password, which the server has seen.
    pub(super) fn signed_in_by(&self, password: &str) {
        let password = AccountPassword::new(password, &mut rng());
        self.state.lock().password = Some(password);
    }

    /// Whether the sign-in was by this password.
    pub(super) fn is_password(&self, text: &str) -> bool {
        let state = self.state.lock();
        let password = state.password.as_ref();
        password.is_some_and(|password| password.is(text))
    }

    fn take(&self, token: &str, seconds: u64) {
        let ends = Instant::now() + Duration::from_secs(seconds);
        self.state.lock().token = Some((token.to_owned(), ends));
    }

    /// The token, if `longer` of its life is left.
    fn current(&self, longer: Duration) -> Option<String> {
        let state = self.state.lock();
        let (token, ends) = state.token.as_ref()?;
        (*ends > Instant::now() + longer).then(|| token.clone())
    }

    /// The access token of this moment; none if the session has ended.
    pub(super) async fn access_token(&self) -> Result<Option<String>> {
        if let Some(token) = self.current(RENEW_BEFORE) {
            return Ok(Some(token));
        }
        match self.renew_from(None).await {
            Ok(true) => {
                let state = self.state.lock();
                Ok(state.token.as_ref().map(|(token, _)| token.clone()))
            }
            Ok(false) => Ok(None),
            // While nobody renews it, the token of before counts to its end.
            Err(error) => self.current(Duration::ZERO).map(Some).ok_or(error),
        }
    }

    /// Renews unless somebody else did meanwhile. False if the session has ended.
    async fn renew_from(&self, refused: Option<String>) -> Result<bool> {
        let _one = self.renewal.lock().await;
        let is_new = |token: &String| refused.as_ref() != Some(token);
        if self
            .current(RENEW_BEFORE)
            .is_some_and(|token| is_new(&token))
        {
            return Ok(true);
        }
        self.refresh().await
    }

    /// A new access token and a new cookie. False if the session has ended.
    pub(super) async fn refresh(&self) -> Result<bool> {
        let shared = self.shared.lock().clone();
        let _lock = match &shared {
            Some(shared) => Some(shared.lock().await?),
            None => None,
        };
        if let Some(shared) = &shared
            && let Some(cookie) = shared.cookie(&self.identity()?)
        {
            self.state.lock().take_up(cookie);
        }
        let is_live = self.renew_alone().await?;
        if let Some(shared) = shared.filter(|_| is_live) {
            shared.changed();
        }
        Ok(is_live)
    }

    async fn renew_alone(&self) -> Result<bool> {
        let call = Call::post("/auth/refresh", &serde_json::json!({})).repeatable();
        let fresh = match self.send(call).await {
            Ok(answer) => answer.json::<Data<Refreshed>>()?.data,
            Err(Error::Api(error)) if error.status == 401 => return Ok(false),
            Err(error) => return Err(error),
        };
        // The cookie may be that of another account.
        if self.identity()?.user_id != fresh.user_id {
            return Ok(false);
        }
        self.take(fresh.access_token.expose(), fresh.expires_in_seconds);
        Ok(true)
    }

    pub(super) async fn log_out(&self) -> Result<()> {
        self.call::<LoggedOut>("/auth/logout", &serde_json::json!({}))
            .await?;
        *self.state.lock() = State::default();
        Ok(())
    }
}

impl Bearer for Account {
    fn token(&self) -> BoxFuture<'_, Result<Option<String>>> {
        self.access_token().boxed()
    }

    fn renew(&self) -> BoxFuture<'_, Result<bool>> {
        let refused = self.current(RENEW_BEFORE);
        self.renew_from(refused).boxed()
    }
}
