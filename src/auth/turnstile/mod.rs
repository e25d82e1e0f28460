//! The human verification: Cloudflare's siteverify protocol, or the dev profile's built-in one.
//!
//! A token passes only if the service says so explicitly and in time. A call whose answer was lost
//! is repeated once under its idempotency key, so it costs the human no second token.
//!
//! Why: ADR 21.

mod permits;

use std::{collections::HashSet, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use self::permits::Permits;
use crate::{
    breaker::Breaker,
    config::{Config, Profile},
    error::{Code, Error, Result},
    limits::address::ClientIp,
    metrics,
    random::Random,
    validation::Text,
};

/// Deadline of a call. There are at most two, so a verification takes at most three seconds.
const CALL_TIMEOUT: Duration = Duration::from_millis(1500);
/// Deadline of connecting, as a part of [`CALL_TIMEOUT`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest accepted answer. A usual answer has some 300 bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The service's errors that concern the node's secret or the service itself. `bad-request` is not
/// among them: the node's requests are well-formed, so it concerns a token. A client must not be
/// able to open the breaker.
const NOT_THE_TOKEN: [&str; 3] = [
    "missing-input-secret",
    "invalid-input-secret",
    "internal-error",
];
/// The token that the dev profile accepts.
const DEV_PASS: &str = "dev-pass";

/// A proof of being human, in the form of a request body.
pub type Token = Text<1, 2048>;

/// Asks whether a token was earned by a human.
#[derive(Clone)]
pub enum Turnstile {
    /// The real service.
    SiteVerify(Arc<SiteVerify>),
    /// Passes `dev-pass` and nothing else.
    Dev,
}

/// A client of the siteverify endpoint.
pub struct SiteVerify {
    http: reqwest::Client,
    url: String,
    secret: SecretString,
    /// Accepted hostnames of a token. Empty: all hostnames that the service allows for the node's
    /// key.
    hostnames: Vec<String>,
    /// Accepted actions of a token. Empty: all.
    actions: Vec<String>,
    random: Random,
    permits: Permits,
    breaker: Breaker,
    /// The addresses whose calls have had no answer since the last one. Each counts once, so that
    /// no client opens the breaker alone.
    unanswered: Mutex<HashSet<String>>,
}

#[derive(Serialize)]
struct Question<'a> {
    secret: &'a str,
    response: &'a str,
    remoteip: IpAddr,
    idempotency_key: String,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default, rename = "error-codes")]
    error_codes: Vec<String>,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    action: String,
}

/// The reason that there is no verdict.
struct Failure {
    cause: Box<dyn std::error::Error + Send + Sync>,
    /// Whether the service is away: it did not answer in time, or with a 5xx.
    is_away: bool,
}

impl Failure {
    /// An answer that is no verdict. A client may have caused it, so it says nothing about others.
    fn odd(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Failure {
            cause: cause.into(),
            is_away: false,
        }
    }

    fn away(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Failure {
            cause: cause.into(),
            is_away: true,
        }
    }
}

/// Checks the settings, and adds a line per fault.
pub fn check_settings(config: &Config, faults: &mut Vec<String>) {
    let secret = config.turnstile_secret.expose_secret();
    if config.profile == Profile::Production && secret.is_empty() {
        faults.push("TURNSTILE_SECRET: required in production".into());
    }
}

impl Turnstile {
    /// Chooses by the configuration: built-in for the dev profile unless a secret is given.
    pub fn new(config: &Config, random: Random) -> Result<Self, reqwest::Error> {
        if config.profile == Profile::Dev && config.turnstile_secret.expose_secret().is_empty() {
            return Ok(Turnstile::Dev);
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .no_proxy();
        Ok(Turnstile::SiteVerify(Arc::new(SiteVerify {
            http: http.redirect(reqwest::redirect::Policy::none()).build()?,
            url: config.turnstile_url.clone(),
            secret: config.turnstile_secret.clone(),
            hostnames: config.turnstile_hostnames.0.clone(),
            actions: config.turnstile_actions.0.clone(),
            random,
            permits: Permits::default(),
            breaker: Breaker::default(),
            unanswered: Mutex::default(),
        })))
    }

    /// Verifies a token. Errors: `TURNSTILE_FAILED` if it is not valid, 503 if there is no verdict.
    pub async fn verify(&self, token: &str, ip: ClientIp) -> Result<()> {
        let passed = match self {
            Turnstile::Dev => token == DEV_PASS,
            Turnstile::SiteVerify(service) => service.ask(token, ip).await?,
        };
        if passed {
            Ok(())
        } else {
            Err(Code::TurnstileFailed.into())
        }
    }
}

impl SiteVerify {
    async fn ask(&self, token: &str, ip: ClientIp) -> Result<bool> {
        let _permit = self.permits.enter(ip).await?;
        if !self.breaker.allow() {
            metrics::human_verified("not_asked");
            return Err(Error::unavailable("the human verification does not answer"));
        }
        let question = Question {
            secret: self.secret.expose_secret(),
            response: token,
            remoteip: ip.ip(),
            idempotency_key: self.random.uuid_v7().to_string(),
        };
        let answer = match self.post(&question).await {
            Ok(answer) => Ok(answer),
            Err(_) => self.post(&question).await,
        };
        match answer {
            Ok(answer) => {
                self.breaker.record_success();
                self.unanswered.lock().clear();
                let passed = self.accepts(&answer);
                metrics::human_verified(if passed { "passed" } else { "refused" });
                Ok(passed)
            }
            Err(failure) => {
                if failure.is_away && self.unanswered.lock().insert(ip.to_string()) {
                    self.breaker.record_failure();
                }
                metrics::human_verified("unknown");
                Err(Error::unavailable(failure.cause))
            }
        }
    }

    /// Whether the token is valid, and its hostname and action are accepted.
    fn accepts(&self, answer: &Answer) -> bool {
        let fits = |allowed: &[String], given| allowed.is_empty() || allowed.contains(given);
        answer.success
            && fits(&self.hostnames, &answer.hostname)
            && fits(&self.actions, &answer.action)
    }

    async fn post(&self, question: &Question<'_>) -> Result<Answer, Failure> {
        // reqwest's errors contain the URL, which may carry an operator's secret.
        let nameless = |error: reqwest::Error| Failure::away(error.without_url());
        let mut response = self
            .http
            .post(&self.url)
            .json(question)
            .send()
            .await
            .map_err(nameless)?;
        if response.status().is_server_error() {
            return Err(Failure::away(format!(
                "the human verification answers {}",
                response.status().as_u16()
            )));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(nameless)? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(Failure::odd("the human verification answers without end"));
            }
            body.extend_from_slice(&chunk);
        }
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|_| Failure::odd("the human verification answers something else"))?;
        match answer
            .error_codes
            .iter()
            .find_map(|code| NOT_THE_TOKEN.iter().find(|known| *known == code))
        {
            Some(code) => Err(Failure::odd(format!("the human verification says {code}"))),
            None => Ok(answer),
        }
    }
}
