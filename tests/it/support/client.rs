//! Principals as clients.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use blindpipe::{clock::Clock, random::Random};
use blindpipe_protocol::{
    accounts::{CodeSent, Login, Refreshed, Register, SendCode, SignedIn},
    agents::{CreateAgent, CreatedAgent},
    conversations::{Conversation, OpenConversation, OpenGroup},
    envelope::Data,
    errors::{Code, ErrorEnvelope},
    messages::SendMessage,
    raw::RawJson,
    text::{DeviceId, DisplayName, EmailAddress, Locale, MailedCode, Secret, Title},
};
use chrono::{DateTime, Utc};
use reqwest::{Method, header::HeaderMap};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    openapi, secrets,
    socket::Socket,
    world::{TestNode, World},
};

/// Claims of a genuine access token.
pub fn claims_of(token: &str) -> Value {
    let part = token.split('.').nth(1).expect("claims");
    serde_json::from_slice(&B64.decode(part).expect("base64")).expect("JSON")
}

/// A fresh ULID.
pub fn ulid() -> ulid::Ulid {
    Random::new(Clock::default()).ulid().into()
}

/// A node's answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// Asserts a status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    /// Asserts a refusal with the whole envelope.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.code()), (status, code), "{}", self.body);
        let ErrorEnvelope { error } =
            serde_json::from_value(self.body.clone()).expect("an error's envelope");
        let known = error.known().expect("a code of the catalogue");
        assert_eq!(known, Code::from_wire(code).expect("a code"));
        assert_eq!(error.i18n_key, known.i18n_key());
        assert_eq!(error.params.retryable, known.retryable());
        assert!(self.headers.contains_key("x-request-id"));
        self
    }

    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    pub fn data(&self) -> &Value {
        &self.body["data"]
    }

    /// The `data` of the answer, in the shape that the protocol gives it.
    #[track_caller]
    pub fn read<T: DeserializeOwned>(&self) -> T {
        // Parsed from text, because raw JSON cannot be read from a `Value`.
        let text = self.body.to_string();
        serde_json::from_str::<Data<T>>(&text)
            .unwrap_or_else(|fault| panic!("{fault}: {text}"))
            .data
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Repeats the request until the answer is no 503, a second later each time (`Retry-After`). A busy
/// machine may not give everyone of a burst a connection in time. Also returns the number of
/// repeats.
pub async fn patiently(ask: impl AsyncFn() -> Answer) -> (Answer, usize) {
    for refused in 0.. {
        let answer = ask().await;
        if answer.status != 503 {
            return (answer, refused);
        }
        assert_eq!(answer.header("retry-after"), Some("1"));
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    unreachable!("it asks for ever")
}

/// A caller of a node: an address, and perhaps a token.
#[derive(Clone)]
pub struct Caller {
    pub base: String,
    pub world: Arc<World>,
    http: reqwest::Client,
    ip: Ipv4Addr,
    token: Option<String>,
}

impl Caller {
    /// An unauthenticated caller with an address of its own.
    pub fn new(node: &TestNode) -> Self {
        Self::to(&node.world, &node.base)
    }

    /// An unauthenticated caller of a node that is a separate process.
    pub fn to(world: &Arc<World>, base: &str) -> Self {
        Caller {
            base: base.to_owned(),
            world: world.clone(),
            http: reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .expect("a client"),
            ip: Self::next_ip(),
            token: None,
        }
    }

    fn next_ip() -> Ipv4Addr {
        static NEXT: AtomicU32 = AtomicU32::new(0x0a00_0001);
        Ipv4Addr::from(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Another caller of the same node. It shares connections, so it is cheaper than
    /// [`Caller::new`].
    pub fn stranger(&self) -> Self {
        Caller {
            ip: Self::next_ip(),
            token: None,
            ..self.clone()
        }
    }

    /// This caller at another node.
    pub fn on(&self, node: &TestNode) -> Self {
        Caller {
            base: node.base.clone(),
            ..self.clone()
        }
    }

    pub fn at(&self, base: &str) -> Self {
        Caller {
            base: base.to_owned(),
            ..self.clone()
        }
    }

    /// The caller's address.
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// This caller with another token.
    pub fn with_token(&self, token: &str) -> Self {
        Caller {
            token: Some(token.to_owned()),
            ..self.clone()
        }
    }

    pub fn request(&self, method: Method, path: impl AsRef<str>) -> reqwest::RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}{}", self.base, path.as_ref()));
        let request = request
            .header("x-forwarded-proto", "https")
            .header("x-forwarded-for", self.ip.to_string());
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        self.try_send(request).await.expect("an answer")
    }

    pub async fn try_send(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<Answer, reqwest::Error> {
        let request = request.build()?;
        let sent = request.body().and_then(reqwest::Body::as_bytes);
        secrets::remember_sent(sent.unwrap_or_default());
        let (method, url) = (request.method().clone(), request.url().clone());
        let response = self.http.execute(request).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await?;
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if url.as_str().starts_with(&self.base) {
            let fault = openapi::fault(method.as_str(), url.path(), status, &body);
            assert_eq!(fault, None, "docs/api/openapi.json says otherwise");
        }
        secrets::remember_all(&body["data"]);
        for cookie in headers.get_all("set-cookie") {
            let text = cookie.to_str().unwrap_or_default();
            let value = text.split(';').next().and_then(|pair| pair.split_once('='));
            if let Some((_, value)) = value.filter(|(_, value)| !value.is_empty()) {
                secrets::remember(value);
            }
        }
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    pub async fn get(&self, path: impl AsRef<str>) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn delete(&self, path: impl AsRef<str>) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: impl AsRef<str>, body: impl Serialize) -> Answer {
        self.send(self.request(Method::POST, path).json(&body))
            .await
    }

    /// Requests a code and reads it from the mail.
    pub async fn code(&self, email: &str, scene: &str) -> String {
        let body = SendCode {
            email: EmailAddress::from(email),
            scene: scene.parse().expect("a scene"),
            turnstile_token: Secret::from(TURNSTILE_PASS),
        };
        let answer = self.post("/auth/send-code", body).await.expect(200);
        assert_eq!(answer.read::<CodeSent>().expires_in_seconds, 600);
        self.world.mailed_code(email).await
    }

    pub async fn patch(&self, path: impl AsRef<str>, body: impl Serialize) -> Answer {
        self.send(self.request(Method::PATCH, path).json(&body))
            .await
    }

    pub async fn put(&self, path: impl AsRef<str>, body: impl Serialize) -> Answer {
        self.send(self.request(Method::PUT, path).json(&body)).await
    }

    pub async fn post_raw(&self, path: impl AsRef<str>, body: impl Into<reqwest::Body>) -> Answer {
        self.send(
            self.request(Method::POST, path)
                .header("content-type", "application/json")
                .body(body),
        )
        .await
    }
}

/// A registered user.
#[derive(Clone)]
pub struct User {
    pub caller: Caller,
    pub id: String,
    pub email: String,
    pub access_token: String,
    pub device_id: String,
    /// The cookie `refresh_token=...`, as a client sends it back.
    pub cookie: String,
}

pub const PASSWORD: &str = "correct horse battery";

/// The token that the built-in Turnstile accepts.
const TURNSTILE_PASS: &str = "dev-pass";

/// A text of a message.
fn text_payload(text: &str) -> RawJson {
    RawJson::of(&json!({ "type": "text", "text": text })).expect("JSON")
}

impl std::ops::Deref for User {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl User {
    pub async fn register(node: &TestNode, name: &str) -> Self {
        Self::register_by(Caller::new(node), name).await
    }

    /// Registers through the API at the caller's node, whose mails are files.
    pub async fn register_by(caller: Caller, name: &str) -> Self {
        let email = format!("{name}-{}@example.org", ulid().to_string().to_lowercase());
        let code = caller.code(&email, "register").await;
        let answer = caller
            .post("/auth/register", Self::registration(&email, name, &code))
            .await
            .expect(201);
        Self::signed_in(caller, email, &answer)
    }

    pub fn registration(email: &str, name: &str, code: &str) -> Value {
        let body = Register {
            email: EmailAddress::from(email),
            code: MailedCode(code.to_owned()),
            account_password: Secret::from(PASSWORD),
            display_name: DisplayName(name.to_owned()),
            device_locale: Locale("en-GB".to_owned()),
            turnstile_token: Secret::from(TURNSTILE_PASS),
            device_id: Some(DeviceId(format!("device-of-{name}"))),
            device_name: None,
            platform: None,
        };
        serde_json::to_value(body).expect("JSON")
    }

    pub fn signed_in(caller: Caller, email: String, answer: &Answer) -> Self {
        let SignedIn {
            user_id,
            access_token: Secret(access_token),
            device_id,
            ..
        } = answer.read();
        let cookie = answer
            .header("set-cookie")
            .expect("a cookie")
            .split(';')
            .next()
            .expect("a value")
            .to_owned();
        User {
            caller: caller.with_token(&access_token),
            id: user_id.to_string(),
            email,
            access_token,
            device_id,
            cookie,
        }
    }

    pub fn on(&self, node: &TestNode) -> Self {
        User {
            caller: self.caller.on(node),
            ..self.clone()
        }
    }

    /// The time `seconds` after the access token's end.
    pub fn after_its_end(&self, seconds: i64) -> DateTime<Utc> {
        let end = claims_of(&self.access_token)["exp"]
            .as_i64()
            .expect("a number");
        DateTime::from_timestamp(end + seconds, 0).expect("a moment")
    }

    /// The user with a new access token, as a client gets one after five minutes.
    pub async fn refreshed(&self) -> Self {
        let request = self
            .request(Method::POST, "/auth/refresh")
            .header("cookie", &self.cookie);
        let answer = self.send(request).await.expect(200);
        let Refreshed {
            access_token: Secret(access_token),
            ..
        } = answer.read();
        let cookie = answer
            .header("set-cookie")
            .expect("a cookie")
            .split(';')
            .next()
            .expect("a value")
            .to_owned();
        User {
            caller: self.caller.with_token(&access_token),
            access_token,
            cookie,
            ..self.clone()
        }
    }

    /// Signs in again with the password, on a device of this name, or one without.
    pub async fn login(&self, node: &TestNode, device: Option<&str>) -> Self {
        self.login_by(node, PASSWORD, device).await
    }

    /// Signs in again on the same device, after a change of the password.
    pub async fn login_with(&self, node: &TestNode, password: &str) -> Self {
        self.login_by(node, password, Some(&self.device_id)).await
    }

    async fn login_by(&self, node: &TestNode, password: &str, device: Option<&str>) -> Self {
        let caller = Caller::new(node);
        let body = Login {
            email: EmailAddress::from(self.email.as_str()),
            account_password: Secret::from(password),
            turnstile_token: Secret::from(TURNSTILE_PASS),
            device_id: device.map(|device| DeviceId(device.to_owned())),
            device_name: None,
            platform: None,
        };
        let answer = caller.post("/auth/login", body).await.expect(200);
        Self::signed_in(caller, self.email.clone(), &answer)
    }

    /// Sends a request with the cookie, as a browser does.
    pub async fn with_cookie(&self, path: &str) -> Answer {
        self.send(
            self.request(Method::POST, path)
                .header("cookie", &self.cookie),
        )
        .await
    }

    /// The cursor before the first event.
    pub async fn start_of_inbox(&self) -> String {
        let socket = self.connect().await;
        let cursor = socket.ready["cursor"].as_str().expect("a cursor");
        format!("{}-0", cursor.split('-').next().expect("an epoch"))
    }

    /// Opens a conversation with an agent; returns its id.
    pub async fn talk_to(&self, agent: &Agent) -> String {
        let body = OpenConversation::Agent {
            agent_id: agent.id.parse().expect("an id"),
        };
        let answer = self.post("/conversations", body).await.expect(201);
        answer.read::<Conversation>().conversation_id.to_string()
    }

    pub async fn say(&self, conversation: &str, text: &str) -> Answer {
        let path = format!("/conversations/{conversation}/messages");
        self.post(path, SendMessage::new(text_payload(text))).await
    }

    /// Opens a group; returns its id.
    pub async fn group_with(&self, members: &[&User]) -> String {
        let ids = members
            .iter()
            .map(|member| member.id.parse().expect("an id"));
        let body = OpenGroup {
            title: Some(Title("a group".to_owned())),
            member_ids: ids.collect(),
            ..OpenGroup::default()
        };
        let answer = self.post("/groups", body).await.expect(201);
        answer.read::<Conversation>().conversation_id.to_string()
    }

    /// A socket that is authenticated and caught up from the last ack.
    pub async fn connect(&self) -> Socket {
        self.connect_from(None).await
    }

    pub async fn connect_from(&self, resume: Option<&str>) -> Socket {
        let mut socket = Socket::open(&self.caller).await;
        socket
            .say(json!({ "type": "auth", "access_token": self.access_token, "resume": resume }))
            .await;
        socket.welcome().await;
        socket
    }
}

/// An agent with its token.
#[derive(Clone)]
pub struct Agent {
    pub caller: Caller,
    pub id: String,
    pub token: String,
}

impl std::ops::Deref for Agent {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Agent {
    pub async fn create(node: &TestNode, owner: &User, name: &str) -> Self {
        Self::create_by(Caller::new(node), &owner.on(node), name).await
    }

    /// Creates an agent through the API at the owner's node. `caller` becomes the agent's.
    pub async fn create_by(caller: Caller, owner: &User, name: &str) -> Self {
        let body = CreateAgent {
            display_name: DisplayName(name.to_owned()),
            description: None,
            manifest: None,
        };
        let answer = owner.post("/agents", body).await.expect(201);
        let CreatedAgent {
            agent_id,
            token: Secret(token),
            ..
        } = answer.read();
        Agent {
            caller: caller.with_token(&token),
            id: agent_id.to_string(),
            token,
        }
    }

    pub fn on(&self, node: &TestNode) -> Self {
        Agent {
            caller: self.caller.on(node),
            ..self.clone()
        }
    }

    pub fn at(&self, base: &str) -> Self {
        Agent {
            caller: self.caller.at(base),
            ..self.clone()
        }
    }

    pub async fn say(&self, conversation: &str, text: &str) -> Answer {
        let body = SendMessage {
            conversation_id: Some(conversation.parse().expect("an id")),
            ..SendMessage::new(text_payload(text))
        };
        self.post(format!("/agents/{}/messages", self.id), body)
            .await
    }

    /// The path of the agent's webhook, or below it.
    pub fn webhook(&self, below: &str) -> String {
        format!("/agents/{}/webhook{below}", self.id)
    }

    pub async fn poll(&self, query: &str) -> Answer {
        self.get(format!("/agents/{}/messages/poll?{query}", self.id))
            .await
    }

    pub async fn connect(&self) -> Socket {
        self.connect_from(None).await
    }

    pub async fn connect_from(&self, resume: Option<&str>) -> Socket {
        self.try_connect(resume).await.expect("a socket")
    }

    /// Connects to a node that may be gone.
    pub async fn try_connect(&self, resume: Option<&str>) -> Option<Socket> {
        let mut socket = Socket::try_open(&self.caller).await?;
        socket
            .say(json!({ "type": "auth", "agent_id": self.id, "token": self.token, "resume": resume }))
            .await;
        socket.welcome().await;
        Some(socket)
    }
}
