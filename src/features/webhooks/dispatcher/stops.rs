//! Calls for stops. A receiver that is busy with a slow call hears of a stop at once, by a call of
//! its own: it takes no slot, waits for no other call and moves no cursor. Deliveries wait for its
//! answer, and leave an event out that the receiver has answered with 2xx. A stop whose call fails,
//! or whose worker dies, is delivered in order.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    super::{
        client::json,
        store::stops::{self, StopCall, TakenStop},
    },
    SharedParts, body,
    endpoint::Endpoint,
    replies::Place,
};
use crate::{
    cursor::Cursor,
    error::{Error, Result},
    events,
    ids::{CredentialId, EventId},
    limits::slots::ConnectionKind,
    supervisor,
};

/// Interval at which a worker looks for stops that other nodes have committed.
const TAKE_INTERVAL: Duration = Duration::from_secs(1);
/// Calls for stops that a worker makes at once.
const MAX_CALLS: usize = 64;

/// The calls for stops of a worker. Clones share them.
#[derive(Clone)]
pub struct StopCalls {
    shared: Arc<SharedParts>,
    places: Arc<Semaphore>,
    under_way: StopsUnderWay,
    tasks: TaskTracker,
}

/// The calls for stops under way: the credential that authorises each, and its end. Clones share
/// them.
#[derive(Clone, Default)]
pub struct StopsUnderWay(Arc<Mutex<HashMap<EventId, (CredentialId, CancellationToken)>>>);

impl StopsUnderWay {
    /// Cuts the calls that one of `credentials` authorises.
    pub fn cut(&self, credentials: &[CredentialId]) {
        for (credential, cut) in self.0.lock().values() {
            if credentials.contains(credential) {
                cut.cancel();
            }
        }
    }
}

impl StopCalls {
    pub fn new(shared: Arc<SharedParts>, tasks: TaskTracker) -> Self {
        StopCalls {
            shared,
            places: Arc::new(Semaphore::new(MAX_CALLS)),
            under_way: StopsUnderWay::default(),
            tasks,
        }
    }

    /// The calls under way.
    pub fn under_way(&self) -> StopsUnderWay {
        self.under_way.clone()
    }

    /// Makes calls until the node takes no new work.
    pub async fn run(self, due: Arc<Notify>) {
        loop {
            if let Err(error) = self.take().await {
                error.log_in("webhooks.take_stops", "the deliveries bring the stops");
            }
            tokio::select! {
                () = due.notified() => {}
                () = tokio::time::sleep(TAKE_INTERVAL) => {}
                () = self.shared.draining.cancelled() => return,
                () = self.shared.stopping.cancelled() => return,
            }
        }
    }

    async fn take(&self) -> Result<()> {
        let room = i64::try_from(self.places.available_permits()).unwrap_or_default();
        if room == 0 {
            return Ok(());
        }
        for taken in stops::take(&self.shared.db, room).await? {
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                return Ok(());
            };
            let calls = self.clone();
            supervisor::spawn_once(&self.tasks, "webhooks.stops", async move {
                calls.make(&taken).await;
                drop(place);
            });
        }
        Ok(())
    }

    async fn make(&self, stop: &TakenStop) {
        let cut = self.shared.stopping.child_token();
        let entry = (stop.endpoint.credential, cut.clone());
        self.under_way.0.lock().insert(stop.event, entry);
        let call = Box::pin(self.call(stop));
        let called = cut.run_until_cancelled(call).await;
        self.under_way.0.lock().remove(&stop.event);
        let db = &self.shared.db;
        let written = match called {
            Some(Ok(Some(call))) => stops::finish(db, &call).await,
            Some(Err(error)) => Err(error),
            // The deliveries need not wait.
            Some(Ok(None)) | None => stops::forget(db, stop.agent, stop.event).await,
        };
        if let Err(error) = written {
            error.log_in("webhooks.stop", "the deliveries bring the stop");
        }
    }

    /// Calls the receiver. None if a socket is online, which has the event, or if the secret does
    /// not open.
    async fn call(&self, stop: &TakenStop) -> Result<Option<StopCall>> {
        let SharedParts {
            client,
            inbox,
            replies,
            seal,
            slots,
            ..
        } = &*self.shared;
        let agent = stop.agent;
        let connections = slots.connections(&[agent.into()]).await;
        let mut connections = connections.iter().flatten();
        if connections.any(|one| one.kind == ConnectionKind::Websocket) {
            return Ok(None);
        }
        let Some(endpoint) = Endpoint::open(agent, &stop.endpoint, seal) else {
            return Ok(None);
        };
        let page = inbox.read(agent.into(), stop.after, stop.events).await?;
        let is_stop = |encoded: &str| events::id_of(encoded) == Some(stop.event);
        let mut page = page.into_iter();
        let entry = page.find(|entry| is_stop(&entry.encoded));
        let entry = entry.ok_or_else(|| Error::unavailable("the event is not in the inbox"))?;
        let cursor = Cursor {
            epoch: stop.epoch.unsigned_abs(),
            seq: entry.seq,
        };
        let delivery = client.next_id();
        let object = events::object(cursor, &entry.encoded);
        let body = body::of(delivery, 1, agent, &object);
        let reserved = client.reserve(agent, &endpoint.url).await;
        let secrets = endpoint.secrets(client.clock.now());
        let exchange = client.post(reserved, &secrets, delivery, body).await;
        let mut attempt = exchange.attempt(1);
        let is_answered = exchange.is_success();
        let reply = exchange.outcome.ok();
        if let Some(reply) = reply.filter(|reply| is_answered && !reply.truncated) {
            let place = Place {
                agent,
                token: endpoint.token,
                conversation: events::conversation_of(&entry.encoded),
                delivery,
            };
            attempt.replies = replies.send(&place, &reply.body).await;
        }
        Ok(Some(StopCall {
            agent,
            event: stop.event,
            delivery,
            seq: entry.seq,
            name: events::kind_of(&entry.encoded).to_owned(),
            attempt: json(&attempt),
            is_answered,
        }))
    }
}
