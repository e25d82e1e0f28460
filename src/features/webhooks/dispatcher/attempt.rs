//! An attempt of a delivery: its body, a slot, the record that it begins, the call, the replies.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{
    super::{
        DeliveryAttempt, SecretSeal,
        client::{Exchange, Secrets},
        store::{
            ledger::{Begin, BegunAttempt, StopState},
            turns::{self, EndpointRow},
        },
    },
    SharedParts, body,
    lanes::{Item, Lane, LoggedDelivery},
    replies::Place,
};
use crate::{
    cursor::Cursor,
    egress::{EgressError, Reserved},
    error::{Error, Result},
    events,
    ids::{AgentId, DeliveryId, TokenId},
    limits::slots::WebhookSlot,
    metrics,
};

/// Wait before an event whose data could not be stored is attempted again.
const STORE_WAIT: TimeDelta = TimeDelta::seconds(10);
/// Wait before the next look at a stop whose call is under way.
const STOP_WAIT: TimeDelta = TimeDelta::milliseconds(250);

/// The address of a turn, opened.
#[derive(Clone)]
pub struct Endpoint {
    pub url: Arc<str>,
    secrets: Secrets,
    /// The end of the previous secret.
    previous_until: Option<DateTime<Utc>>,
    updated_at: DateTime<Utc>,
    pub token: Option<TokenId>,
}

impl Endpoint {
    /// None if the secret does not open.
    pub fn open(agent: AgentId, row: &EndpointRow, seal: &SecretSeal) -> Option<Self> {
        let open = |sealed: &Option<Vec<u8>>| seal.open(agent, sealed.as_ref()?);
        Some(Endpoint {
            url: row.url.as_str().into(),
            secrets: Secrets {
                current: open(&row.sealed_secret)?,
                previous: open(&row.sealed_previous),
            },
            previous_until: row.previous_valid_until,
            updated_at: row.updated_at,
            token: row.token,
        })
    }

    /// The secrets that sign at this time.
    pub fn secrets(&self, now: DateTime<Utc>) -> Secrets {
        let is_valid = self.previous_until.is_some_and(|until| until > now);
        let Secrets { current, previous } = self.secrets.clone();
        Secrets {
            current,
            previous: previous.filter(|_| is_valid),
        }
    }
}

/// The parts of a turn that its attempts share.
#[derive(Clone)]
pub struct Context {
    pub shared: Arc<SharedParts>,
    pub agent: AgentId,
    pub turn: i32,
    pub epoch: u64,
    pub endpoint: Arc<Mutex<Endpoint>>,
    pub cut: CancellationToken,
}

/// An attempt that is over.
pub struct FinishedAttempt {
    pub lane: Lane,
    pub item: Item,
    pub end: End,
}

/// Counts a call while it is under way, however it ends.
struct UnderWay;

impl UnderWay {
    fn new() -> Self {
        metrics::webhook_calls(1.0);
        UnderWay
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        metrics::webhook_calls(-1.0);
    }
}

/// The calls that a worker may have under way. Receivers that fail share half of them, so that
/// they never hold up the others.
pub struct Calls {
    all: Arc<Semaphore>,
    failing: Arc<Semaphore>,
}

/// A place among the calls, held to the end of the call.
struct Permits(
    #[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit,
    #[expect(dead_code, reason = "held, not read")] Option<OwnedSemaphorePermit>,
);

impl Calls {
    /// At most `max` calls.
    pub fn new(max: usize) -> Self {
        Calls {
            all: Arc::new(Semaphore::new(max)),
            failing: Arc::new(Semaphore::new(max.div_ceil(2))),
        }
    }

    async fn take(&self, failing: bool) -> Option<Permits> {
        let half = if failing {
            Some(self.failing.clone().acquire_owned().await.ok()?)
        } else {
            None
        };
        let one = self.all.clone().acquire_owned().await.ok()?;
        Some(Permits(one, half))
    }
}

/// The end of an attempt.
pub enum End {
    /// The receiver has answered, or the call has failed. It is not recorded yet.
    Called(Call),
    /// The event is delivered. All events up to this number are finished.
    Finished { acked: i64 },
    /// The attempt has failed, and the agent has acked the event in another way.
    Overtaken { acked: i64 },
    /// The attempt has failed, and another one follows.
    Retry {
        at: DateTime<Utc>,
        /// The end of the pause that the receiver asked for.
        pause_until: Option<DateTime<Utc>>,
    },
    /// The receiver has the event already, by the call for a stop. Nothing was sent.
    Answered,
    /// The event's data could not be stored, or the call for a stop is under way. It was no attempt.
    Deferred { at: DateTime<Utc> },
    /// The address has changed after the attempt began, and the new one has no free place. Nothing
    /// was sent, so it was no attempt.
    Unsent,
    /// No place among the calls or the agent's slots is free. Nothing was written.
    Crowded,
    /// A socket of the agent is online. It was no attempt.
    Online,
    /// The turn is lost, or the call was cut.
    Lost,
}

/// A finished call.
pub struct Call {
    /// The attempt for the log.
    pub attempt: DeliveryAttempt,
    pub succeeded: bool,
    /// The receiver's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl Context {
    /// Attempts a delivery. `failing` receivers share a part of the calls.
    pub async fn attempt(self, lane: Lane, item: Item, failing: bool) -> FinishedAttempt {
        let mut item = item;
        let cut = self.cut.clone();
        let attempt = self.make(&mut item, failing);
        let end = cut.run_until_cancelled(Box::pin(attempt)).await;
        FinishedAttempt {
            lane,
            item,
            end: end.unwrap_or(End::Lost),
        }
    }

    async fn make(&self, item: &mut Item, failing: bool) -> End {
        // Before everything that others wait for, because the store may be slow.
        let object = match self.object(item).await {
            Ok(object) => object,
            Err(error) => {
                error.log_in("webhooks.store_event", "it is tried again in ten seconds");
                let at = self.shared.client.clock.now() + STORE_WAIT;
                return End::Deferred { at };
            }
        };
        let reserved = self.reserve().await;
        if matches!(reserved, Err(EgressError::Busy)) {
            return End::Crowded;
        }
        let Some(_permits) = self.shared.calls.take(failing).await else {
            return End::Lost;
        };
        let _lease = match self.shared.slots.take_for_webhook(self.agent).await {
            WebhookSlot::Taken(lease) => lease,
            WebhookSlot::Full => return End::Crowded,
            WebhookSlot::Online => return End::Online,
        };
        let (id, is_new) = match &item.logged {
            Some(logged) => (logged.id, false),
            None => (DeliveryId::generate(&self.shared.client.random), true),
        };
        let begin = Begin {
            agent: self.agent,
            turn: self.turn,
            delivery: id,
            seq: item.seq,
            event: events::kind_of(&item.encoded).to_owned(),
            id: events::id_of(&item.encoded),
            is_new,
        };
        let Ok(Some(begun)) = self.shared.ledger.begin(begin).await else {
            return End::Lost;
        };
        match begun.stop {
            StopState::None => {}
            StopState::UnderWay => {
                let at = self.shared.client.clock.now() + STOP_WAIT;
                return End::Deferred { at };
            }
            StopState::Answered => return End::Answered,
        }
        if is_new {
            item.logged = Some(LoggedDelivery {
                id,
                interrupted: Vec::new(),
                succeeded: false,
                is_replay: false,
            });
        }
        let under_way = UnderWay::new();
        let exchange = self.call(reserved, id, begun, item, object).await;
        drop(under_way);
        match exchange {
            Ok(exchange) => self.conclude(item, id, begun, exchange).await,
            Err(error) => {
                error.log_in("webhooks.attempt", "the turn ends and is claimed again");
                End::Lost
            }
        }
    }

    /// The event object of the body, with a reference in place of data that are too large.
    async fn object(&self, item: &mut Item) -> Result<String> {
        let whole = self.whole(item);
        if !body::is_too_large(&whole) {
            return Ok(whole);
        }
        match body::referenced(&self.shared.objects, self.agent, &item.encoded).await? {
            Some(reference) => Ok(events::object(self.cursor(item), &reference)),
            None => self.reread(item).await,
        }
    }

    /// Reads the event again, which has lost the payload of its message, and returns its object.
    async fn reread(&self, item: &mut Item) -> Result<String> {
        let inbox = &self.shared.inbox;
        let page = inbox.read(self.agent.into(), item.seq - 1, 1).await?;
        let entry = page.into_iter().find(|entry| entry.seq == item.seq);
        let entry = entry.ok_or_else(|| Error::unavailable("the event has just expired"))?;
        item.encoded = entry.encoded;
        Ok(self.whole(item))
    }

    fn whole(&self, item: &Item) -> String {
        events::object(self.cursor(item), &item.encoded)
    }

    fn cursor(&self, item: &Item) -> Cursor {
        Cursor {
            epoch: self.epoch,
            seq: item.seq,
        }
    }

    /// A place among the calls to the receiver, before anything is written. A node that ends waits
    /// for none.
    async fn reserve(&self) -> Result<Reserved, EgressError> {
        let url = self.endpoint.lock().url.clone();
        let reserved = self.shared.client.reserve(self.agent, &url);
        let draining = &self.shared.draining;
        let reserved = draining.run_until_cancelled(reserved).await;
        reserved.unwrap_or(Err(EgressError::Busy))
    }

    async fn call(
        &self,
        reserved: Result<Reserved, EgressError>,
        id: DeliveryId,
        begun: BegunAttempt,
        item: &mut Item,
        object: String,
    ) -> Result<Exchange> {
        let object = if begun.is_deleted {
            self.reread(item).await?
        } else {
            object
        };
        let endpoint = self.endpoint_of(begun).await?;
        let client = &self.shared.client;
        let reserved = match reserved.and_then(|place| place.to(&endpoint.url)) {
            Ok(Some(reserved)) => Ok(reserved),
            // The address has changed since.
            Ok(None) => client.reserve(self.agent, &endpoint.url).await,
            Err(error) => Err(error),
        };
        let body = body::of(id, begun.attempt, self.agent, &object);
        let secrets = endpoint.secrets(client.clock.now());
        Ok(client.post(reserved, &secrets, id, body).await)
    }

    /// The present endpoint. It is read again after a change.
    async fn endpoint_of(&self, begun: BegunAttempt) -> Result<Endpoint> {
        let known = self.endpoint.lock().clone();
        if known.updated_at == begun.updated_at {
            return Ok(known);
        }
        let row = turns::reload(&self.shared.db, self.agent).await?;
        let fresh = row.and_then(|row| Endpoint::open(self.agent, &row, &self.shared.seal));
        if let Some(fresh) = &fresh {
            *self.endpoint.lock() = fresh.clone();
        }
        Ok(fresh.unwrap_or(known))
    }

    async fn conclude(
        &self,
        item: &Item,
        id: DeliveryId,
        begun: BegunAttempt,
        exchange: Exchange,
    ) -> End {
        if matches!(exchange.outcome, Err(EgressError::Busy)) {
            return End::Unsent;
        }
        let outcome = exchange.error().unwrap_or("success");
        metrics::webhook_attempt(outcome);
        Span::current().record("outcome", outcome);
        let mut attempt = exchange.attempt(begun.attempt);
        let succeeded = exchange.is_success();
        let reply = exchange.outcome.ok();
        if let Some(reply) = reply.as_ref().filter(|reply| succeeded && !reply.truncated) {
            let place = Place {
                agent: self.agent,
                token: self.endpoint.lock().token,
                conversation: events::conversation_of(&item.encoded),
                delivery: id,
            };
            attempt.replies = self.shared.replies.send(&place, &reply.body).await;
        }
        End::Called(Call {
            attempt,
            succeeded,
            retry_after: reply.and_then(|reply| reply.retry_after),
        })
    }
}
