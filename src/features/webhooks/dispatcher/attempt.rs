//! The attempt of a delivery: its body, a slot, the record that it begins, the call, the replies. A call
//! may bring several deliveries, each of which is an attempt of its own in the log.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::{join_all, try_join_all};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{
    super::{
        DeliveryAttempt,
        client::Exchange,
        store::{
            ledger::{Begin, BegunAttempt, StopState},
            turns,
        },
    },
    SharedParts, body,
    calls::UnderWay,
    endpoint::Endpoint,
    lanes::{Item, Lane, LoggedDelivery},
    replies::{BatchAnswer, Place},
    settle::{self, Standing},
};
use crate::{
    cursor::Cursor,
    egress::{EgressError, Reserved},
    error::{Error, Result},
    events,
    ids::{AgentId, DeliveryId},
    limits::slots::WebhookSlot,
    metrics,
};

/// Wait before an event whose data could not be stored is attempted again.
const STORE_WAIT: TimeDelta = TimeDelta::seconds(10);
/// Wait before the next look at a stop whose call is under way.
const STOP_WAIT: TimeDelta = TimeDelta::milliseconds(250);
/// The word for a delivery that the receiver's answer names as failed.
const REPORTED: &str = "reported";

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
    /// The event had no room in the call after all. Nothing was written.
    LeftOut,
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
    /// It alone of its call's failures changes the webhook's `last_error`.
    pub is_first_failure: bool,
    /// The receiver's `Retry-After`.
    pub retry_after: Option<Duration>,
}

/// The form of a call's body and of its answer.
#[derive(Clone, Copy)]
enum Form {
    Event,
    Batch,
}

/// A delivery that is about to be sent.
struct BegunDelivery {
    /// The place of its event in the batch.
    place: usize,
    id: DeliveryId,
    attempt: BegunAttempt,
}

impl Context {
    /// Attempts the deliveries of `batch` by one call. `failing` receivers share a part of the calls.
    pub async fn attempt(
        self,
        mut batch: Vec<(Lane, Item)>,
        failing: bool,
    ) -> Vec<FinishedAttempt> {
        let mut ends = Vec::new();
        ends.resize_with(batch.len(), || None);
        let cut = self.cut.clone();
        let attempt = self.make(&mut batch, &mut ends, failing);
        // Whatever has no end by then is lost.
        let rest = cut.run_until_cancelled(Box::pin(attempt)).await;
        let rest = rest.unwrap_or(|| End::Lost);
        let attempts = batch.into_iter().zip(ends);
        attempts
            .map(|((lane, item), end)| FinishedAttempt {
                lane,
                item,
                end: end.unwrap_or_else(rest),
            })
            .collect()
    }

    /// Sets the ends of attempts. Answers the end of all others.
    async fn make(
        &self,
        batch: &mut [(Lane, Item)],
        ends: &mut [Option<End>],
        failing: bool,
    ) -> fn() -> End {
        // Before everything that others wait for, because the store may be slow.
        let mut objects = Vec::with_capacity(batch.len());
        for (n, (_, item)) in batch.iter_mut().enumerate() {
            match self.object(item).await {
                Ok(object) => objects.push(object),
                Err(error) => {
                    error.log_in("webhooks.store_event", "it is tried again in ten seconds");
                    let at = self.shared.client.clock.now() + STORE_WAIT;
                    ends[n] = Some(End::Deferred { at });
                    return || End::LeftOut;
                }
            }
        }
        objects.truncate(body::fitting(&objects));
        for end in &mut ends[objects.len()..] {
            *end = Some(End::LeftOut);
        }
        let reserved = self.reserve().await;
        if matches!(reserved, Err(EgressError::Busy)) {
            return || End::Crowded;
        }
        let Some(_permits) = self.shared.calls.take(failing).await else {
            return || End::Lost;
        };
        let _lease = match self.shared.slots.take_for_webhook(self.agent).await {
            WebhookSlot::Taken(lease) => lease,
            WebhookSlot::Full => return || End::Crowded,
            WebhookSlot::Online => return || End::Online,
        };
        let Some(begun) = self.begin(&mut batch[..objects.len()], ends).await else {
            return || End::Lost;
        };
        if begun.is_empty() {
            return || End::Lost;
        }
        let under_way = UnderWay::new();
        let exchange = self.call(reserved, &begun, batch, objects).await;
        drop(under_way);
        match exchange {
            Ok(Some(call)) => self.conclude(batch, ends, &begun, call).await,
            Ok(None) => return || End::Unsent,
            Err(error) => error.log_in("webhooks.attempt", "the turn ends and is claimed again"),
        }
        || End::Lost
    }

    /// Records that attempts begin. None if the turn is lost. Events that wait for the call for a stop
    /// hold up those after them in their lanes.
    async fn begin(
        &self,
        batch: &mut [(Lane, Item)],
        ends: &mut [Option<End>],
    ) -> Option<Vec<BegunDelivery>> {
        let ids: Vec<(DeliveryId, bool)> = batch
            .iter()
            .map(|(_, item)| match &item.logged {
                Some(logged) => (logged.id, false),
                None => (DeliveryId::generate(&self.shared.client.random), true),
            })
            .collect();
        let begins = batch
            .iter()
            .zip(&ids)
            .map(|((_, item), (id, is_new))| Begin {
                agent: self.agent,
                turn: self.turn,
                delivery: *id,
                seq: item.seq,
                event: events::kind_of(&item.encoded).to_owned(),
                id: events::id_of(&item.encoded),
                is_new: *is_new,
            });
        let attempts = try_join_all(begins.map(|begin| self.shared.ledger.begin(begin))).await;
        let attempts: Vec<BegunAttempt> = attempts.ok()?.into_iter().collect::<Option<_>>()?;
        let mut begun = Vec::with_capacity(batch.len());
        let mut held_up = BTreeSet::new();
        let attempts = attempts.into_iter().zip(ids);
        for (place, ((lane, item), (attempt, (id, is_new)))) in
            batch.iter_mut().zip(attempts).enumerate()
        {
            if attempt.stop == StopState::None && is_new {
                item.logged = Some(LoggedDelivery {
                    id,
                    interrupted: Vec::new(),
                    succeeded: false,
                    is_replay: false,
                });
            }
            match attempt.stop {
                StopState::UnderWay => {
                    let at = self.shared.client.clock.now() + STOP_WAIT;
                    ends[place] = Some(End::Deferred { at });
                    held_up.insert(*lane);
                }
                StopState::Answered => ends[place] = Some(End::Answered),
                StopState::None if held_up.contains(lane) => ends[place] = Some(End::Unsent),
                StopState::None => begun.push(BegunDelivery { place, id, attempt }),
            }
        }
        Some(begun)
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

    /// Calls the receiver. None if its address has changed, and takes fewer events now.
    async fn call(
        &self,
        reserved: Result<Reserved, EgressError>,
        begun: &[BegunDelivery],
        batch: &mut [(Lane, Item)],
        mut objects: Vec<String>,
    ) -> Result<Option<(Exchange, Form)>> {
        let mut bodies = Vec::with_capacity(begun.len());
        for BegunDelivery { place, id, attempt } in begun {
            if attempt.is_deleted {
                objects[*place] = self.reread(&mut batch[*place].1).await?;
            }
            bodies.push(body::of(*id, attempt.attempt, self.agent, &objects[*place]));
        }
        let endpoint = self.endpoint_of(begun[0].attempt).await?;
        if bodies.len() > endpoint.max_events {
            return Ok(None);
        }
        let client = &self.shared.client;
        let reserved = match reserved.and_then(|place| place.to(&endpoint.url)) {
            Ok(Some(reserved)) => Ok(reserved),
            // The address has changed since.
            Ok(None) => client.reserve(self.agent, &endpoint.url).await,
            Err(error) => Err(error),
        };
        let (body, form) = match endpoint.max_events {
            1 => (bodies.swap_remove(0), Form::Event),
            _ => (body::of_batch(self.agent, &bodies), Form::Batch),
        };
        let secrets = endpoint.secrets(client.clock.now());
        let ids: Vec<DeliveryId> = begun.iter().map(|one| one.id).collect();
        let id = body::batch_id(&ids);
        let exchange = client.post(reserved, &secrets, id, body).await;
        Ok(Some((exchange, form)))
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

    /// Sets the ends of what was sent.
    async fn conclude(
        &self,
        batch: &[(Lane, Item)],
        ends: &mut [Option<End>],
        begun: &[BegunDelivery],
        (exchange, form): (Exchange, Form),
    ) {
        if matches!(exchange.outcome, Err(EgressError::Busy)) {
            let unsent = begun.iter().map(|one| one.place);
            unsent.for_each(|place| ends[place] = Some(End::Unsent));
            return;
        }
        let succeeded = exchange.is_success();
        let body = exchange.outcome.as_ref().ok();
        let body = body.filter(|reply| succeeded && !reply.truncated);
        let body = body.map_or(&b""[..], |reply| &reply.body);
        let answer = match form {
            Form::Event => None,
            Form::Batch => Some(BatchAnswer::parse(body)),
        };
        let (mut stuck, mut any_failed) = (BTreeSet::new(), false);
        for BegunDelivery { place, id, attempt } in begun {
            let (lane, item) = &batch[*place];
            // A conversation is delivered in its order, so what follows a failed event fails, too.
            let answer = answer.as_ref();
            if answer.is_some_and(|answer| answer.has_failed(*id)) {
                stuck.insert(*lane);
            }
            let is_reported = stuck.contains(lane);
            let outcome = exchange.error().or(is_reported.then_some(REPORTED));
            metrics::webhook_attempt(outcome.unwrap_or("success"));
            Span::current().record("outcome", outcome.unwrap_or("success"));
            let mut attempt = exchange.attempt(attempt.attempt);
            attempt.error = outcome.map(str::to_owned);
            if outcome.is_none() {
                let recipient = Place {
                    agent: self.agent,
                    token: self.endpoint.lock().token,
                    conversation: events::conversation_of(&item.encoded),
                    delivery: *id,
                };
                let replies = &self.shared.replies;
                attempt.replies = match answer {
                    None => replies.send(&recipient, body).await,
                    Some(answer) => replies.send_all(&recipient, answer.messages(*id)).await,
                };
            }
            let is_first_failure = outcome.is_some() && !any_failed;
            any_failed |= outcome.is_some();
            ends[*place] = Some(End::Called(Call {
                attempt,
                succeeded: outcome.is_none(),
                is_first_failure,
                retry_after: exchange
                    .outcome
                    .as_ref()
                    .ok()
                    .and_then(|reply| reply.retry_after),
            }));
        }
    }
}

/// Attempts the deliveries of a batch and records how each has ended.
pub async fn attempt_and_record(
    context: Context,
    standing: Arc<Mutex<Standing>>,
    batch: Vec<(Lane, Item)>,
    failing: bool,
) -> Vec<FinishedAttempt> {
    let attempted = context.clone().attempt(batch, failing).await;
    let records = attempted
        .into_iter()
        .map(|one| settle::record(&context, &standing, one));
    join_all(records).await
}
