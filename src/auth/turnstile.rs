//! The human verification: Cloudflare's siteverify protocol, or the dev profile's stand-in.
//!
//! Promises: a token passes only if the service says so, in time and in so many words; nothing else is a pass. A call
//! whose answer was lost is made once more under the same idempotency key, so that it costs the human no token.

use std::{net::IpAddr, sync::Arc, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::{
    breaker::Breaker,
    config::{Config, Profile},
    error::{Code, Error, Result},
    metrics,
    random::Random,
    validation::Text,
};

/// One call; there are two at most, so that all is over in three seconds.
const CALL_TIMEOUT: Duration = Duration::from_millis(1500);
/// Of which to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Verifications at once.
const MAX_CONCURRENT_CHECKS: usize = 64;
/// An answer has some 300 bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// What the service says when it was not the token but our secret or itself. (`bad-request` is not among them: our
/// questions are well-formed, so it can only be about a token, and a client must not be able to open the breaker.)
const NOT_THE_TOKEN: [&str; 3] = [
    "missing-input-secret",
    "invalid-input-secret",
    "internal-error",
];
/// What the stand-in passes.
const DEV_PASS: &str = "dev-pass";

/// A proof of being human, as a body carries it.
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
    /// Where a token may have been earned; empty: wherever the service gives one out for our key.
    hostnames: Vec<String>,
    /// For what; empty: for anything.
    actions: Vec<String>,
    random: Random,
    places: Semaphore,
    breaker: Breaker,
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

/// Why there is no verdict.
type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Turnstile {
    /// As the configuration says: built in for the dev profile unless a secret is given.
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
            places: Semaphore::new(MAX_CONCURRENT_CHECKS),
            breaker: Breaker::default(),
        })))
    }

    /// `TURNSTILE_FAILED` unless the token is good; 503 if nobody can say.
    pub async fn verify(&self, token: &str, ip: IpAddr) -> Result<()> {
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
    async fn ask(&self, token: &str, ip: IpAddr) -> Result<bool> {
        let _place = self.places.try_acquire().map_err(Error::unavailable)?;
        if !self.breaker.allow() {
            metrics::human_verified("not_asked");
            return Err(Error::unavailable("the human verification does not answer"));
        }
        let question = Question {
            secret: self.secret.expose_secret(),
            response: token,
            remoteip: ip,
            idempotency_key: self.random.uuid_v7().to_string(),
        };
        let answer = match self.post(&question).await {
            Ok(answer) => Ok(answer),
            Err(_) => self.post(&question).await,
        };
        match answer {
            Ok(answer) => {
                self.breaker.record_success();
                let passed = self.accepts(&answer);
                metrics::human_verified(if passed { "passed" } else { "refused" });
                Ok(passed)
            }
            Err(failure) => {
                self.breaker.record_failure();
                metrics::human_verified("unknown");
                Err(Error::unavailable(failure))
            }
        }
    }

    /// Whether the token was good, and earned where and for what ours are.
    fn accepts(&self, answer: &Answer) -> bool {
        let fits = |allowed: &[String], given| allowed.is_empty() || allowed.contains(given);
        answer.success
            && fits(&self.hostnames, &answer.hostname)
            && fits(&self.actions, &answer.action)
    }

    async fn post(&self, question: &Question<'_>) -> Result<Answer, Failure> {
        // Its errors name the address, which may carry what an operator put into it.
        let nameless = reqwest::Error::without_url;
        let mut response = self
            .http
            .post(&self.url)
            .json(question)
            .send()
            .await
            .map_err(nameless)?;
        if response.status().is_server_error() {
            return Err(format!(
                "the human verification answers {}",
                response.status().as_u16()
            )
            .into());
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(nameless)? {
            if body.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err("the human verification answers without end".into());
            }
            body.extend_from_slice(&chunk);
        }
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|_| "the human verification answers something else")?;
        match answer
            .error_codes
            .iter()
            .find_map(|code| NOT_THE_TOKEN.iter().find(|known| *known == code))
        {
            Some(code) => Err(format!("the human verification says {code}").into()),
            None => Ok(answer),
        }
    }
}
