//! The human verification: Cloudflare's siteverify protocol, or the dev profile's stand-in.

use std::{net::IpAddr, sync::Arc, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::{
    config::{Config, Profile},
    error::{Code, Error, Result},
    http::json::Text,
    random::Random,
};

/// Whole call; Turnstile unreachable is 503, never a pass.
const DEADLINE: Duration = Duration::from_secs(3);
/// Calls at once.
const IN_FLIGHT: usize = 64;
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
    random: Random,
    places: Semaphore,
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
}

impl Turnstile {
    /// As the configuration says: built in for the dev profile unless a secret is given.
    pub fn new(config: &Config, random: Random) -> Result<Self, reqwest::Error> {
        if config.profile == Profile::Dev && config.turnstile_secret.expose_secret().is_empty() {
            return Ok(Turnstile::Dev);
        }
        let http =
            reqwest::Client::builder().connect_timeout(Duration::from_secs(1)).timeout(DEADLINE).no_proxy();
        Ok(Turnstile::SiteVerify(Arc::new(SiteVerify {
            http: http.redirect(reqwest::redirect::Policy::none()).build()?,
            url: config.turnstile_url.clone(),
            secret: config.turnstile_secret.clone(),
            random,
            places: Semaphore::new(IN_FLIGHT),
        })))
    }

    /// `TURNSTILE_FAILED` unless the token is good; 503 if nobody can say.
    pub async fn verify(&self, token: &str, ip: IpAddr) -> Result<()> {
        let passed = match self {
            Turnstile::Dev => token == DEV_PASS,
            Turnstile::SiteVerify(service) => service.ask(token, ip).await?,
        };
        if passed { Ok(()) } else { Err(Code::TurnstileFailed.into()) }
    }
}

impl SiteVerify {
    async fn ask(&self, token: &str, ip: IpAddr) -> Result<bool> {
        let _place = self.places.try_acquire().map_err(Error::unavailable)?;
        let question = Question {
            secret: self.secret.expose_secret(),
            response: token,
            remoteip: ip,
            idempotency_key: self.random.uuid_v7().to_string(),
        };
        let answer = match self.post(&question).await {
            // Asked twice with one key, the service gives one answer; a lost answer costs no token.
            Err(error) if error.is_connect() => self.post(&question).await,
            answer => answer,
        };
        Ok(answer.map_err(|error| Error::unavailable(error.without_url()))?.success)
    }

    async fn post(&self, question: &Question<'_>) -> Result<Answer, reqwest::Error> {
        self.http.post(&self.url).json(question).send().await?.error_for_status()?.json().await
    }
}
