//! REST calls: retries, pacing, errors. It never logs a body, a token or a query.

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::{
    envelope::{Data, List},
    errors::{Code, ErrorEnvelope},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use rand::RngExt;
use reqwest::{Method, StatusCode, Url, header::HeaderMap};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{full_jitter, pacer::Pacer, progress::Counted, rng};
use crate::{
    ApiError, Error, Result,
    hooks::{Hook, Hooks},
};

const MAX_TRIES: u32 = 5;
const FIRST_RETRY: Duration = Duration::from_millis(250);
const MAX_RETRY: Duration = Duration::from_secs(8);
const MAX_LIMIT_WAIT: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);
/// A larger body tells how much of it has come.
const LARGE_BYTES: u64 = 1024 * 1024;
const DEFAULT_LIMIT_WAIT: Duration = Duration::from_secs(1);

/// The credential of a moment.
pub(crate) trait Bearer: Send + Sync {
    /// None if there is none any more. A failure says nothing about the credential.
    fn token(&self) -> BoxFuture<'_, Result<Option<String>>>;

    /// True if a refused call is worth another try; false if the credential has ended.
    fn renew(&self) -> BoxFuture<'_, Result<bool>>;
}

#[derive(Clone)]
pub(crate) struct Http(Arc<Inner>);

struct Inner {
    client: reqwest::Client,
    url: String,
    hooks: Hooks,
    bearer: Option<Arc<dyn Bearer>>,
    pacer: Pacer,
}

#[derive(Clone)]
enum Body {
    None,
    Json(Vec<u8>),
    Bytes(Bytes),
}

/// A call. Every try sends equal bytes.
#[derive(Clone)]
pub(crate) struct Call {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    headers: HeaderMap,
    body: Body,
    repeatable: bool,
}

impl Call {
    fn new(method: Method, path: String) -> Self {
        let repeatable = method == Method::GET || method == Method::PUT;
        Self {
            method,
            path,
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: Body::None,
            repeatable,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path.into())
    }

    pub(crate) fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path.into())
    }

    pub(crate) fn post(path: impl Into<String>, body: &(impl Serialize + ?Sized)) -> Self {
        Self::with_json(Method::POST, path.into(), body)
    }

    pub(crate) fn put(path: impl Into<String>, body: &(impl Serialize + ?Sized)) -> Self {
        Self::with_json(Method::PUT, path.into(), body)
    }

    /// Any call, its body as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a method or a path that is none.
    pub(crate) fn raw(method: &str, path: &str, json: Option<Vec<u8>>) -> Result<Self> {
        // Without the slash, the text could lead the token to another host.
        if !path.starts_with('/') {
            return Err(Error::Usage("a path begins with /"));
        }
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes());
        let method = method.map_err(|_| Error::Usage("there is no such method"))?;
        Ok(Self {
            body: json.map_or(Body::None, Body::Json),
            ..Self::new(method, path.to_owned())
        })
    }

    pub(crate) fn patch(path: impl Into<String>, body: &(impl Serialize + ?Sized)) -> Self {
        Self::with_json(Method::PATCH, path.into(), body)
    }

    fn with_json(method: Method, path: String, body: &(impl Serialize + ?Sized)) -> Self {
        let bytes = serde_json::to_vec(body).unwrap_or_default();
        Self {
            body: Body::Json(bytes),
            ..Self::new(method, path)
        }
    }

    pub(crate) fn upload(path: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self {
            body: Body::Bytes(bytes.into()),
            ..Self::new(Method::PUT, path.into())
        }
    }

    pub(crate) fn query(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        let value = value.map(|value| (name, value.to_string()));
        self.query.extend(value);
        self
    }

    pub(crate) fn headers(mut self, headers: HeaderMap) -> Self {
        self.headers = headers;
        self
    }

    /// A repeat changes nothing: a send with an id. GETs and PUTs are so anyway.
    pub(crate) const fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    /// Ids leave the path: budgets are counted per route, not per id.
    fn route(&self) -> String {
        let is_id = |part: &&str| part.len() >= 20 && part.bytes().any(|b| b.is_ascii_digit());
        let parts: Vec<_> = self
            .path
            .split('/')
            .map(|part| if is_id(&part) { ":id" } else { part })
            .collect();
        format!("{} {}", self.method, parts.join("/"))
    }
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    /// A shorter body than announced is a lost connection.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|_| Error::lost())
    }
}

impl Http {
    pub(crate) fn new(
        client: reqwest::Client,
        url: &str,
        hooks: Hooks,
        bearer: Option<Arc<dyn Bearer>>,
    ) -> Self {
        Self(Arc::new(Inner {
            client,
            url: url.to_owned(),
            hooks,
            bearer,
            pacer: Pacer::default(),
        }))
    }

    /// The `data` of an answer.
    pub(crate) async fn data<T: DeserializeOwned>(&self, call: Call) -> Result<T> {
        let Data { data } = self.json(call).await?;
        Ok(data)
    }

    /// A page of a list.
    pub(crate) async fn page<T: DeserializeOwned>(&self, call: Call) -> Result<List<T>> {
        self.json(call).await
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T> {
        self.send(call).await?.json()
    }

    pub(crate) async fn bytes(&self, call: Call) -> Result<Vec<u8>> {
        Ok(self.send(call).await?.body)
    }

    /// The successful answer itself.
    pub(crate) async fn send(&self, call: Call) -> Result<Answer> {
        let route = call.route();
        let lane = self.0.pacer.lane(&route);
        let deadline = Instant::now() + MAX_LIMIT_WAIT;
        let (mut tries, mut renewed) = (0, false);
        let mut turn = lane.enter().await;
        loop {
            let error = match self.attempt(&call).await {
                Ok(answer) => {
                    let budget = answer.headers.get("ratelimit");
                    lane.observe(budget.and_then(|it| it.to_str().ok()).unwrap_or_default());
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if error.code() == Some(Code::RateLimited) {
                let wait = limit_wait(&error);
                if Instant::now() + wait > deadline {
                    return Err(error);
                }
                self.tell_limit(&error, wait);
                lane.hold(wait);
                if turn.is_none() {
                    turn = lane.enter().await;
                } else {
                    tokio::time::sleep(wait).await;
                }
                continue;
            }
            if error.code() == Some(Code::Unauthorized) && !renewed {
                renewed = true;
                if let Some(bearer) = &self.0.bearer
                    && bearer.renew().await?
                {
                    continue;
                }
                return Err(error);
            }
            tries += 1;
            if !call.repeatable || !is_passing(&error) || tries >= MAX_TRIES {
                return Err(error);
            }
            let hinted = error.api().and_then(ApiError::retry_after);
            let wait =
                full_jitter(tries - 1, FIRST_RETRY, MAX_RETRY).max(hinted.unwrap_or_default());
            self.0.hooks.call(&Hook::Retry {
                attempt: tries,
                wait,
                what: route.clone(),
            });
            tokio::time::sleep(wait).await;
        }
    }

    /// The body is read here too: an answer that is cut off in it is no answer.
    async fn attempt(&self, call: &Call) -> Result<Answer> {
        let url = format!("{}{}", self.0.url, call.path);
        let mut url = Url::parse(&url).map_err(|_| Error::Usage("the address is no URL"))?;
        for (name, value) in &call.query {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut request = self
            .0
            .client
            .request(call.method.clone(), url)
            .headers(call.headers.clone())
            .timeout(REQUEST_TIMEOUT);
        request = match &call.body {
            Body::None => request,
            Body::Json(bytes) => request
                .header("content-type", "application/json")
                .body(bytes.clone()),
            Body::Bytes(bytes) => request
                .header("content-type", "application/octet-stream")
                .timeout(TRANSFER_TIMEOUT)
                .body(reqwest::Body::wrap(Counted::new(
                    bytes.clone(),
                    self.0.hooks.clone(),
                ))),
        };
        if let Some(bearer) = &self.0.bearer
            && let Some(token) = bearer.token().await?
        {
            request = request.bearer_auth(token);
        }
        // The address may name what is read.
        let lost = |error: reqwest::Error| Error::lost_by(error.without_url());
        let mut response = request.send().await.map_err(lost)?;
        let status = response.status();
        let answer = Answer {
            headers: std::mem::take(response.headers_mut()),
            body: self.read(response).await.map_err(lost)?,
        };
        if status.is_success() {
            return Ok(answer);
        }
        Err(refusal(status, &answer).into())
    }

    /// The body, and for a large one how much has come.
    async fn read(&self, mut response: reqwest::Response) -> reqwest::Result<Vec<u8>> {
        let of = response.content_length().unwrap_or_default();
        if of < LARGE_BYTES {
            return Ok(response.bytes().await?.into());
        }
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await? {
            body.extend_from_slice(&piece);
            let bytes = body.len() as u64;
            self.0.hooks.call(&Hook::Transferred { bytes, of });
        }
        Ok(body)
    }

    fn tell_limit(&self, error: &Error, wait: Duration) {
        let scope = error
            .api()
            .and_then(|error| error.params.get("scope")?.as_str());
        self.0.hooks.call(&Hook::RateLimited {
            scope: scope.unwrap_or_default().to_owned(),
            wait,
        });
    }
}

/// The wait of a refusal, and up to a tenth more, so that not all come back at once.
fn limit_wait(error: &Error) -> Duration {
    let hinted = error.api().and_then(ApiError::retry_after);
    let more = 1.0 + rng().random::<f64>() / 10.0;
    hinted.unwrap_or(DEFAULT_LIMIT_WAIT).mul_f64(more)
}

fn is_passing(error: &Error) -> bool {
    match error {
        Error::ConnectionLost { .. } => true,
        Error::Api(error) => matches!(error.status, 502..=504),
        _ => false,
    }
}

fn refusal(status: StatusCode, answer: &Answer) -> ApiError {
    let header = |name: &str| {
        let value = answer.headers.get(name)?.to_str().ok()?;
        Some(value.to_owned())
    };
    let request_id = header("x-request-id");
    let after = header("retry-after").and_then(|after| after.parse::<u64>().ok());
    let mut error = match answer.json::<ErrorEnvelope>() {
        Ok(envelope) => ApiError::new(status.as_u16(), envelope.error, request_id),
        Err(_) => ApiError::bare(status.as_u16()),
    };
    if let Some(seconds) = after {
        let ms = error.params.entry("retry_after_ms");
        ms.or_insert_with(|| (seconds * 1000).into());
    }
    error
}

/// Whether something is not there, as far as this caller may know.
pub(crate) fn is_missing(error: &Error) -> bool {
    error
        .api()
        .is_some_and(|error| error.status == StatusCode::NOT_FOUND.as_u16())
}
