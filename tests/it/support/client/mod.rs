//! Principals as clients.

mod agent;
mod user;

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
    accounts::{CodeSent, SendCode},
    envelope::Data,
    errors::{Code, ErrorEnvelope},
    raw::RawJson,
    text::{EmailAddress, Secret},
};
use reqwest::{Method, header::HeaderMap};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    openapi, secrets,
    world::{TestNode, World},
};

pub use self::{
    agent::Agent,
    user::{PASSWORD, User},
};

/// The token that the built-in Turnstile accepts.
const TURNSTILE_PASS: &str = "dev-pass";

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
            // Nodes speak plain HTTP here. The file of the system's certificates takes long to read.
            http: reqwest::Client::builder()
                .no_proxy()
                .tls_certs_only([])
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
        if status == 429 && method != Method::HEAD {
            let params = &body["error"]["params"];
            let is_whole = params["retry_after_ms"].is_u64()
                && params["limit"].is_string()
                && params["scope"].is_string();
            assert!(is_whole, "a refusal without its limit: {body}");
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

/// A text of a message.
fn text_payload(text: &str) -> RawJson {
    RawJson::of(&json!({ "type": "text", "text": text })).expect("JSON")
}
