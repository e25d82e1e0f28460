//! Wake-ups: the agents whose inboxes have grown, from the commit to their turns. Every node writes
//! them, whether it delivers or not. A lost one costs the time until the next sweep.
//!
//! The statement that stores an event also says whether its recipient has an open turn, so most
//! events need no wake-up. A turn that opens beside that statement reads the inbox by itself.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{super::store::turns, held::HeldTurns};
use crate::{
    db::Db,
    delivery::Backplane,
    error::Result,
    ids::{AgentId, Principal},
    inbox::{AppendedEvent, Delivery},
    limits::slots::Slots,
    supervisor,
    telemetry::trace::TraceContext,
};

/// Pause after a hint to the workers, for each live node. Further events share the next hint, so up
/// to fifty nodes together send a worker at most 500 a second.
const HINT_INTERVAL_PER_NODE: Duration = Duration::from_millis(2);
/// Longest pause after a hint.
const MAX_HINT_INTERVAL: Duration = Duration::from_millis(100);
/// Between two tries while Postgres is away.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Most agents of a statement.
const MAX_BATCH_AGENTS: usize = 1024;

/// Notes agents with new events. Clones share them.
#[derive(Clone, Default)]
pub struct Waker {
    noted: Arc<Mutex<PendingWakeups>>,
    notify: Arc<Notify>,
    turn_due: Arc<Notify>,
    stop_due: Arc<Notify>,
    held: HeldTurns,
}

#[derive(Default)]
struct PendingWakeups {
    /// Agents with new events.
    fresh: HashSet<AgentId>,
    /// Agents with a socket less.
    offline: HashSet<AgentId>,
    /// Events that are part of a trace: the agent, the number in its inbox, the trace.
    traced: Vec<(AgentId, i64, TraceContext)>,
}

impl PendingWakeups {
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.offline.is_empty()
    }
}

/// The agent, if the principal is one.
fn agent(principal: Principal) -> Option<AgentId> {
    match principal {
        Principal::Agent(agent) => Some(agent),
        Principal::User(_) => None,
    }
}

/// The deliveries of events that webhooks are to make, each with its agent and the event's trace.
fn to_webhooks(
    events: &[AppendedEvent],
) -> impl Iterator<Item = (AgentId, &Delivery, Option<TraceContext>)> {
    events.iter().flat_map(|event| {
        let deliveries = event.deliveries.iter().filter(|one| one.has_webhook);
        deliveries.filter_map(|one| Some((agent(one.recipient)?, one, event.trace)))
    })
}

impl Waker {
    /// Notes agents with something to do.
    pub fn note(&self, agents: impl Iterator<Item = AgentId>) {
        let mut agents = agents.peekable();
        if agents.peek().is_some() {
            self.noted.lock().fresh.extend(agents);
            self.notify.notify_one();
        }
    }

    /// Notes the agents whose webhooks have events, and the traces of these events.
    fn note_events(&self, events: &[AppendedEvent]) {
        let traced: Vec<_> = to_webhooks(events)
            .filter_map(|(agent, delivery, trace)| Some((agent, delivery.seq, trace?)))
            .collect();
        if !traced.is_empty() {
            self.noted.lock().traced.extend(traced);
        }
        self.note(to_webhooks(events).map(|(agent, ..)| agent));
    }

    /// Notes agents with a socket less.
    fn note_offline(&self, principals: &[Principal]) {
        let mut agents = principals.iter().copied().filter_map(agent).peekable();
        // A wake-up is a transaction, and most sockets are users'.
        if agents.peek().is_some() {
            self.noted.lock().offline.extend(agents);
            self.notify.notify_one();
        }
    }

    /// Notified when a turn is due.
    pub fn turn_due(&self) -> Arc<Notify> {
        self.turn_due.clone()
    }

    /// Notified when a stop waits for its call.
    pub fn stop_due(&self) -> Arc<Notify> {
        self.stop_due.clone()
    }

    /// The turns that this node holds.
    pub fn held(&self) -> HeldTurns {
        self.held.clone()
    }

    /// Listens to commits and to sockets that end, and spawns the writer. `delivers` says whether
    /// this node delivers; otherwise others are told of due turns.
    pub fn start(
        &self,
        db: Db,
        backplane: &Backplane,
        slots: &Slots,
        delivers: bool,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let waker = self.clone();
        backplane.on_published(move |events| waker.note_events(events));
        let waker = self.clone();
        slots.on_offline(move |principals| waker.note_offline(principals));
        if delivers {
            let waker = self.clone();
            backplane.on_webhooks_woken(move |held| {
                held.for_each(|agent| {
                    waker.held.wake(agent);
                });
                waker.turn_due.notify_one();
                waker.stop_due.notify_one();
            });
        }
        let (waker, backplane) = (self.clone(), backplane.clone());
        let stop = stop.clone();
        supervisor::spawn(tasks, "webhooks.wake", move || {
            let (waker, db, backplane) = (waker.clone(), db.clone(), backplane.clone());
            let stop = stop.clone();
            async move { waker.write(&db, &backplane, delivers, &stop).await }
        });
    }

    /// Writes what is noted until `stop`, and the rest then.
    async fn write(
        &self,
        db: &Db,
        backplane: &Backplane,
        delivers: bool,
        stop: &CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = self.notify.notified() => {}
                () = stop.cancelled() => break,
            }
            if !self.write_noted(db, backplane, delivers).await {
                stop.run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL))
                    .await;
                self.notify.notify_one();
            }
        }
        // A lost wake-up is the sweep's, so a Postgres that is away does not hold up the end.
        while !self.noted.lock().is_empty() && self.write_noted(db, backplane, delivers).await {}
    }

    /// Writes a batch of what is noted. False if Postgres is away; then it is noted again.
    async fn write_noted(&self, db: &Db, backplane: &Backplane, delivers: bool) -> bool {
        let (fresh, offline, traced) = {
            let mut noted = self.noted.lock();
            let fresh = noted.fresh.extract_if(|_| true);
            let fresh: Vec<AgentId> = fresh.take(MAX_BATCH_AGENTS).collect();
            let offline = std::mem::take(&mut noted.offline);
            if !noted.fresh.is_empty() {
                self.notify.notify_one();
            }
            (
                fresh,
                Vec::from_iter(offline),
                std::mem::take(&mut noted.traced),
            )
        };
        // Before the turns begin that look for them.
        if !traced.is_empty()
            && let Err(error) = turns::note_traces(db, &traced).await
        {
            error.log_in("webhooks.note_traces", "the deliveries are in no trace");
        }
        let Err(error) = self.wake(db, backplane, delivers, &fresh, &offline).await else {
            return true;
        };
        error.log_in("webhooks.wake", "the same agents are tried again soon");
        let mut noted = self.noted.lock();
        noted.fresh.extend(fresh);
        noted.offline.extend(offline);
        false
    }

    async fn wake(
        &self,
        db: &Db,
        backplane: &Backplane,
        delivers: bool,
        fresh: &[AgentId],
        offline: &[AgentId],
    ) -> Result<()> {
        let woken = turns::wake(db, fresh, offline).await?;
        let elsewhere = woken
            .held
            .into_iter()
            .filter(|agent| !self.held.wake(*agent));
        let elsewhere: Vec<AgentId> = elsewhere.collect();
        if woken.any_due && delivers {
            self.turn_due.notify_one();
        }
        if !elsewhere.is_empty() || woken.any_due && !delivers {
            backplane.wake_webhooks(elsewhere);
            let pause = HINT_INTERVAL_PER_NODE * backplane.nodes();
            tokio::time::sleep(pause.min(MAX_HINT_INTERVAL)).await;
        }
        Ok(())
    }
}
