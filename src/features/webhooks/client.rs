//! A signed call to a receiver: the body of an event, its headers, the answer.

use std::time::{Duration, Instant};

use axum::http::{HeaderValue, header};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::Serialize;
use subtle::ConstantTimeEq;

use super::{
    DeliveryAttempt, WebhookCall, WebhookChallenge, WebhookEvent,
    signature::{Signer, WebhookSecret},
};
use crate::{
    clock::Clock,
    egress::{Destination, Egress, EgressError, Reply, Reserved},
    error::{Error, Result},
    ids::{AgentId, DeliveryId, EventId},
    random::Random,
};

/// Characters of a challenge.
const CHALLENGE_CHARACTERS: usize = 43;
/// The longest wait for a place among the calls to an origin. It is shorter than a turn, so a turn
/// that waits makes way for other agents.
const PLACE_WAIT: Duration = Duration::from_secs(4);
/// The word for a status that is no success.
const UNEXPECTED_STATUS: &str = "unexpected_status";

/// The secrets that sign a call.
#[derive(Clone)]
pub struct Secrets {
    pub current: WebhookSecret,
    /// The secret before the last rotation, while it is valid.
    pub previous: Option<WebhookSecret>,
}

/// Calls receivers. Clones share the connections.
#[derive(Clone)]
pub struct WebhookClient {
    pub egress: Egress,
    pub signer: Signer,
    pub clock: Clock,
    pub random: Random,
}

/// A finished exchange.
pub struct Exchange {
    pub started_at: DateTime<Utc>,
    pub duration: Duration,
    pub outcome: Result<Reply, EgressError>,
}

impl Exchange {
    /// Whether the receiver has answered with 2xx.
    pub fn is_success(&self) -> bool {
        self.outcome
            .as_ref()
            .is_ok_and(|reply| reply.status.is_success())
    }

    /// The receiver's status, if it gave one.
    pub fn status(&self) -> Option<u16> {
        self.outcome
            .as_ref()
            .ok()
            .map(|reply| reply.status.as_u16())
    }

    /// The reason of a failure, as a word.
    pub fn error(&self) -> Option<&'static str> {
        match &self.outcome {
            Ok(reply) if reply.status.is_success() => None,
            Ok(_) => Some(UNEXPECTED_STATUS),
            Err(error) => Some(error.word()),
        }
    }

    /// The exchange as attempt `n` of the log.
    pub fn attempt(&self, n: i32) -> DeliveryAttempt {
        DeliveryAttempt {
            n,
            at: self.started_at.into(),
            duration_ms: u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            response_status: self.status(),
            error: self.error().map(str::to_owned),
            replies: Vec::new(),
        }
    }
}

impl WebhookClient {
    /// Checks an address. Errors: `VALIDATION_ERROR` for `url`.
    pub async fn check(&self, url: &str) -> Result<Destination> {
        self.egress.check(url).await.map_err(|error| {
            let message = match error {
                EgressError::InvalidUrl(rule) => rule,
                EgressError::ForbiddenAddress => "leads to an address that is not public",
                EgressError::Dns => "has a host without an address",
                _ => "could not be checked",
            };
            Error::field("url", error.word(), message)
        })
    }

    /// Takes a place for a call of the agent's receiver. Errors: as [`Egress::reserve`].
    pub async fn reserve(&self, agent: AgentId, url: &str) -> Result<Reserved, EgressError> {
        self.egress.reserve(url, Some(agent.0), PLACE_WAIT).await
    }

    /// Posts `body` with a place that was taken, signed at this moment. Without one the exchange
    /// has failed for its reason.
    pub async fn post(
        &self,
        reserved: Result<Reserved, EgressError>,
        secrets: &Secrets,
        delivery: DeliveryId,
        body: impl Into<Bytes>,
    ) -> Exchange {
        let (started_at, started) = (self.clock.now(), Instant::now());
        let body = body.into();
        let Secrets { current, previous } = secrets;
        let mut headers =
            self.signer
                .headers(current, previous.as_ref(), delivery, started_at, &body);
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        let outcome = match reserved {
            Ok(reserved) => reserved.post(headers, body).await,
            Err(error) => Err(error),
        };
        Exchange {
            started_at,
            duration: started.elapsed(),
            outcome,
        }
    }

    /// Posts `webhook.verify`. Answers the reason if the receiver did not return the challenge.
    pub async fn challenge(
        &self,
        agent: AgentId,
        url: &str,
        secrets: &Secrets,
    ) -> Option<&'static str> {
        let challenge = self.random.base62(CHALLENGE_CHARACTERS);
        let event = WebhookEvent::Verify(WebhookChallenge {
            challenge: challenge.clone(),
        });
        let (_, exchange) = self.call(agent, url, secrets, event).await;
        match exchange.outcome {
            Ok(reply) if reply.status.as_u16() == 200 => {
                let answer: Option<WebhookChallenge> = serde_json::from_slice(&reply.body).ok();
                let matches = answer.is_some_and(|answer| {
                    answer
                        .challenge
                        .as_bytes()
                        .ct_eq(challenge.as_bytes())
                        .into()
                });
                (!matches).then_some("challenge_mismatch")
            }
            Ok(_) => Some(UNEXPECTED_STATUS),
            Err(error) => Some(error.word()),
        }
    }

    /// The id of another delivery.
    pub fn next_id(&self) -> DeliveryId {
        DeliveryId::generate(&self.random)
    }

    /// Posts an event that is not of the inbox.
    pub async fn call(
        &self,
        agent: AgentId,
        url: &str,
        secrets: &Secrets,
        event: WebhookEvent,
    ) -> (DeliveryId, Exchange) {
        let id = self.next_id();
        let call = WebhookCall {
            delivery_id: id,
            attempt: 1,
            agent_id: agent,
            event_id: EventId::generate(&self.random),
            created_at: self.clock.now().into(),
            event,
        };
        let reserved = self.reserve(agent, url).await;
        (id, self.post(reserved, secrets, id, json(&call)).await)
    }
}

/// The JSON of a type that has no map with other keys than strings.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
