//! The dispatcher: delivers the events of agents with a webhook. The inbox is the queue. A row per
//! agent (`webhook_turn`) says when its next turn is due, and which worker has it.
//!
//! A committed event makes its agents' turns due, at once by a hint ([`Waker`]), and at last by a
//! sweep whose cost is the number of new events. Workers claim due turns, oldest first, for a lease
//! of 30 s. A turn delivers side by side what may be, and records each attempt before and after the
//! call ([`ledger`]). A worker that lost its turn can record nothing more.
//!
//! Agents are independent: a receiver holds up its own agent alone. Receivers that fail share half
//! of the calls and of the claims.

mod attempt;
mod body;
mod calls;
mod endpoint;
mod held;
mod lanes;
mod ledger;
mod replies;
mod settle;
mod stops;
mod turn;
mod waker;
mod window;

use std::{sync::Arc, time::Duration};

use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::waker::Waker;
use self::{
    calls::Calls,
    held::{HeldTurns, Signals},
    ledger::Ledger,
    replies::Replies,
    stops::StopCalls,
    turn::Turn,
};
use super::{
    SecretSeal, WebhookClient,
    rules::Backoff,
    store::turns::{self, Claim, Release},
    unreadable,
};
use crate::{
    config::Config,
    db::Db,
    delivery::Backplane,
    error::Result,
    features::messages::MessageWriter,
    inbox::Inbox,
    limits::{Limits, buffers::ByteBudget, slots::Slots},
    objects::Objects,
    supervisor,
    work::UnitOfWork,
};

/// Interval at which a worker looks for turns that no hint announced: retries, and the turns of
/// dead workers.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a worker asks whether its turns still count. It bounds the time that a call
/// outlives a suspension whose message was lost.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Checks between two renewals of the leases.
const CHECKS_PER_RENEWAL: u32 = 5;
/// Most turns of a claim.
const MAX_BATCH_TURNS: usize = 64;
/// Turns that a worker has at once, for each call that it may have under way. Most turns wait.
const TURNS_PER_CALL: usize = 4;

/// The numbers that the operator sets.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Conversations of an agent that are delivered side by side.
    pub conversations: usize,
    /// Calls of a worker under way at once.
    pub calls: usize,
    pub backoff: Backoff,
}

impl Settings {
    /// The settings of a node.
    pub fn new(config: &Config) -> Self {
        let span = Duration::from_secs(config.webhook_retry_seconds.0.into());
        Settings {
            conversations: config.webhook_conversations.0 as usize,
            calls: config.egress_in_flight.0 as usize,
            backoff: Backoff::over(span),
        }
    }
}

/// The parts that all turns of a worker use.
pub struct SharedParts {
    settings: Settings,
    db: Db,
    work: UnitOfWork,
    inbox: Inbox,
    buffers: ByteBudget,
    slots: Slots,
    client: WebhookClient,
    objects: Objects,
    seal: SecretSeal,
    replies: Replies,
    ledger: Ledger,
    calls: Calls,
    turns: Arc<Semaphore>,
    turn_due: Arc<Notify>,
    /// Cancelled when the node takes no new work.
    draining: CancellationToken,
    /// Cancelled when the node ends.
    stopping: CancellationToken,
}

/// The turns to claim of `room`: of agents whose last attempt succeeded, and of others. Those whose
/// receivers fail get a quarter, and never nothing beside others.
fn shares(room: usize) -> [i64; 2] {
    let failing = if room > 1 { room.div_ceil(4) } else { 0 };
    [room - failing, failing].map(|share| i64::try_from(share).unwrap_or(i64::MAX))
}

impl SharedParts {
    /// Whether other agents wait for this worker.
    fn is_busy(&self) -> bool {
        self.turns.available_permits() == 0
    }
}

/// The parts of the node that a dispatcher needs.
pub struct Parts {
    pub settings: Settings,
    /// Connections of its own, whose commits do not wait for the disk. A delivery that a crash of
    /// Postgres forgets is made again.
    pub db: Db,
    pub work: UnitOfWork,
    pub backplane: Backplane,
    pub buffers: ByteBudget,
    pub slots: Slots,
    pub client: WebhookClient,
    pub objects: Objects,
    pub seal: SecretSeal,
    pub limits: Limits,
    pub message_writer: MessageWriter,
    /// Gets the turns. A drain waits for them.
    pub turns: TaskTracker,
    pub draining: CancellationToken,
    pub stopping: CancellationToken,
}

/// Delivers on this node.
#[derive(Clone)]
pub struct Dispatcher {
    shared: Arc<SharedParts>,
    held: HeldTurns,
    tasks: TaskTracker,
}

impl Dispatcher {
    /// Spawns a worker; it ends with the node.
    pub fn start(parts: Parts, waker: &Waker, tasks: &TaskTracker) {
        let ledger = Ledger::start(parts.db.clone(), tasks);
        let held = waker.held();
        let cut = held.clone();
        let hub = parts.backplane.hub().clone();
        let shared = Arc::new(SharedParts {
            settings: parts.settings,
            inbox: Inbox::new(parts.db.clone()),
            db: parts.db,
            work: parts.work,
            buffers: parts.buffers,
            slots: parts.slots,
            client: parts.client,
            objects: parts.objects,
            seal: parts.seal,
            replies: Replies {
                limits: parts.limits,
                message_writer: parts.message_writer,
            },
            ledger,
            calls: Calls::new(parts.settings.calls),
            turns: Arc::new(Semaphore::new(TURNS_PER_CALL * parts.settings.calls)),
            turn_due: waker.turn_due(),
            draining: parts.draining,
            stopping: parts.stopping,
        });
        let stops = StopCalls::new(shared.clone(), parts.turns.clone());
        // No more than that: the hub is a part of what the rest holds, and neither would ever end.
        let cut_stops = stops.under_way();
        hub.on_revoked(move |credentials| {
            cut.cut(credentials);
            cut_stops.cut(credentials);
        });
        let stop_due = waker.stop_due();
        supervisor::spawn(tasks, "webhooks.take_stops", move || {
            stops.clone().run(stop_due.clone())
        });
        let dispatcher = Dispatcher {
            shared,
            held,
            tasks: parts.turns,
        };
        let claims = dispatcher.clone();
        supervisor::spawn(tasks, "webhooks.claim", move || claims.clone().claim());
        supervisor::spawn(tasks, "webhooks.check", move || dispatcher.clone().check());
    }

    /// Claims due turns until the node takes no new work.
    async fn claim(self) {
        let SharedParts {
            draining,
            stopping,
            turn_due,
            ..
        } = &*self.shared;
        loop {
            let claimed = match self.claim_some().await {
                Ok(claimed) => claimed,
                Err(error) => {
                    error.log_in(
                        "webhooks.claim",
                        "the dispatcher claims again at the next tick",
                    );
                    0
                }
            };
            if claimed > 0 {
                continue;
            }
            tokio::select! {
                () = turn_due.notified() => {}
                () = tokio::time::sleep(CLAIM_INTERVAL) => {}
                () = draining.cancelled() => return,
                () = stopping.cancelled() => return,
            }
        }
    }

    /// Claims as many turns as there is room for; returns their number.
    async fn claim_some(&self) -> Result<usize> {
        // A drain waits for a claim under way, and then for its turns.
        let _under_way = self.tasks.token();
        let room = self.shared.turns.available_permits().min(MAX_BATCH_TURNS);
        if room == 0 || self.shared.draining.is_cancelled() {
            return Ok(0);
        }
        let [calm, failing] = shares(room);
        let mut claims = turns::claim(&self.shared.db, calm, failing).await?;
        // A single place serves both kinds, and the calm ones first.
        if claims.is_empty() && failing == 0 {
            claims = turns::claim(&self.shared.db, 0, calm).await?;
        }
        let claimed = claims.len();
        for claim in claims {
            self.begin(claim);
        }
        Ok(claimed)
    }

    fn begin(&self, claim: Claim) {
        let Ok(place) = self.shared.turns.clone().try_acquire_owned() else {
            return;
        };
        let woken = Arc::new(Notify::new());
        let (agent, number) = (claim.agent, claim.turn);
        let Some(turn) = Turn::new(self.shared.clone(), &claim, woken.clone()) else {
            return self.give_up(claim);
        };
        let signals = Signals {
            turn: number,
            credential: claim.endpoint.credential,
            cut: turn.cut(),
            woken,
        };
        self.held.add(agent, signals);
        let held = self.held.clone();
        supervisor::spawn_once(&self.tasks, "webhooks.turns", async move {
            // A turn that is held is renewed, so a panic must not leave it among the held ones.
            let remedy = "another turn begins after the lease";
            supervisor::contain("webhooks.turn", remedy, Box::pin(turn.run(claim))).await;
            held.remove(agent, number);
            drop(place);
        });
    }

    /// Ends a turn whose secret does not open. Its owner hears of it.
    fn give_up(&self, claim: Claim) {
        let work = self.shared.work.clone();
        supervisor::spawn_once(&self.tasks, "webhooks.give_up", async move {
            let sealed = claim.endpoint.sealed_secret.unwrap_or_default();
            if let Err(error) = unreadable::mark(&work, claim.agent, &sealed).await {
                error.log_in("webhooks.mark_unreadable", "the next claim marks it");
                return;
            }
            // The turn goes on at once if the secret is another one by now.
            let next = Release {
                due_in: Some(0.0),
                is_forced: true,
                has_open: claim.has_open,
                ..Release::default()
            };
            if let Err(error) = turns::release(work.db(), claim.agent, claim.turn, next).await {
                error.log_in("webhooks.release", "another turn begins after the lease");
            }
        });
    }

    /// Asks whether the held turns still count, and renews their leases.
    async fn check(self) {
        let mut checks = 0;
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = self.shared.stopping.cancelled() => return,
            }
            checks += 1;
            if let Err(error) = self.check_once(checks % CHECKS_PER_RENEWAL == 0).await {
                error.log_in("webhooks.check", "the next check asks again");
            }
        }
    }

    async fn check_once(&self, renews: bool) -> Result<()> {
        let held = self.held.all();
        if held.is_empty() {
            return Ok(());
        }
        if renews {
            turns::renew(&self.shared.db, &held).await?;
        }
        let counting = turns::check(&self.shared.db, &held).await?;
        self.held.apply(&held, &counting);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn failing_receivers_have_a_share_of_every_room() {
        assert_eq!(shares(1), [1, 0]);
        assert_eq!(shares(2), [1, 1]);
        assert_eq!(shares(3), [2, 1]);
        assert_eq!(shares(64), [48, 16]);
    }
}
