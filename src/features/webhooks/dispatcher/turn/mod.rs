//! The turn of an agent: its events in order, up to three conversations side by side.
//!
//! A turn reads the inbox from the agent's cursor and delivers until nothing is left to do now. It
//! ends early if a socket is online, if the receiver asks for a pause, or if other agents wait.

mod reading;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tracing::Instrument;

use super::{
    super::store::{
        deliveries::DeliveryRow,
        turns::{self, Claim, Release, Traces},
    },
    SharedParts,
    attempt::{Context, End, FinishedAttempt, attempt_and_record},
    body::MAX_BODY_BYTES,
    endpoint::Endpoint,
    lanes::Lanes,
    settle::{self, Standing},
    window::Window,
};
use crate::{error::Result, limits::slots::WebhookSlot, metrics, telemetry::trace};

/// A turn waits this long for a retry. A later one gets a turn of its own.
const MAX_IDLE: TimeDelta = TimeDelta::seconds(5);
/// Length of a turn after which other agents come first.
const MAX_TURN: Duration = Duration::from_secs(5);
/// Until the next look at an agent with a socket. A dead node's sockets count for up to 7 s more,
/// and both together must stay below 10 s.
const PARKED_SECONDS: f64 = 2.0;
/// Tries of a step that Postgres fails. They last for less than the lease.
const MAX_FAILURES: u32 = 5;
/// Pause between these tries.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Wait after a turn that the node had no room for.
const NO_ROOM_SECONDS: f64 = 1.0;
/// Wait after a turn that Postgres has ended.
const LOST_SECONDS: f64 = 1.0;
/// Wait for a free slot or place.
const CROWDED_WAIT: TimeDelta = TimeDelta::milliseconds(200);

/// A turn that this worker holds.
pub struct Turn {
    pub(super) context: Context,
    pub(super) standing: Arc<Mutex<Standing>>,
    woken: Arc<Notify>,
    lanes: Lanes,
    calls: FuturesUnordered<BoxFuture<'static, Vec<FinishedAttempt>>>,
    /// The deliveries of the log that are still open, by their events' numbers.
    logged: HashMap<i64, DeliveryRow>,
    /// The log may have open deliveries that this turn has not loaded.
    has_unloaded: bool,
    /// The traces of events that may not be read yet.
    pub(super) traces: Traces,
    /// The bytes of the events that it holds.
    held: Arc<AtomicUsize>,
    /// The agent's cursor as Postgres has it, at least.
    recorded: i64,
    /// Everything up to this number was read.
    read_to: i64,
    /// The inbox may have more.
    has_more: bool,
    /// No slot is free, or the receiver asked for a pause.
    paused_until: Option<DateTime<Utc>>,
    /// The reason to start nothing more.
    stop: Option<Stop>,
    started: Instant,
}

/// Why a turn starts nothing more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// A socket is online.
    Online,
    /// Other agents wait, or the node ends.
    Yield,
    /// The node holds as many bytes as it may.
    NoRoom,
    /// The turn is lost.
    Lost,
}

impl Turn {
    /// A turn out of its claim. None if its secret cannot be opened.
    pub fn new(shared: Arc<SharedParts>, claim: &Claim, woken: Arc<Notify>) -> Option<Self> {
        let endpoint = Endpoint::open(claim.agent, &claim.endpoint, &shared.seal)?;
        let window = Window::parse(claim.acked, &claim.done);
        let read_to = window.acked();
        let concurrency = if claim.failures > 0 {
            1
        } else {
            shared.settings.conversations
        };
        let standing = Standing {
            window,
            failures: claim.failures,
            concurrency,
        };
        let context = Context {
            agent: claim.agent,
            turn: claim.turn,
            epoch: claim.epoch.unsigned_abs(),
            endpoint: Arc::new(Mutex::new(endpoint)),
            cut: shared.stopping.child_token(),
            shared,
        };
        metrics::webhook_turns(1.0);
        Some(Turn {
            context,
            standing: Arc::new(Mutex::new(standing)),
            woken,
            lanes: Lanes::default(),
            calls: FuturesUnordered::new(),
            logged: HashMap::new(),
            has_unloaded: claim.has_open,
            traces: claim.traces.clone(),
            held: Arc::default(),
            recorded: claim.acked,
            read_to,
            has_more: true,
            paused_until: None,
            stop: None,
            started: Instant::now(),
        })
    }

    /// Cancelled to cut the turn's calls.
    pub fn cut(&self) -> tokio_util::sync::CancellationToken {
        self.context.cut.clone()
    }

    /// Runs the turn to its end. A failure of Postgres cuts no call: the turn waits a second for it
    /// and goes on.
    pub async fn run(mut self, claim: Claim) {
        let mut begun = self.begin(&claim).await;
        let mut failures = 0;
        loop {
            match begun {
                Ok(true) => return,
                Ok(false) => failures = 0,
                Err(error) if failures < MAX_FAILURES => {
                    error.log_in("webhooks.turn", "the turn tries again in a second");
                    failures += 1;
                    // Pages whose reading is in doubt are read again.
                    (self.has_more, self.has_unloaded) = (true, true);
                    self.wait_for_postgres().await;
                }
                Err(error) => {
                    // The lease ends by itself, and another worker goes on.
                    error.log_in("webhooks.turn", "another worker claims it after its lease");
                    return;
                }
            }
            begun = self.step().await;
        }
    }

    /// Loads what an earlier turn has left. True if the turn is over.
    async fn begin(&mut self, claim: &Claim) -> Result<bool> {
        if claim.was_parked && self.is_still_parked().await? {
            return Ok(true);
        }
        if claim.has_open {
            self.load_open().await?;
        }
        Ok(false)
    }

    /// Reads, starts what may start, and waits for what comes next. True if the turn is over.
    async fn step(&mut self) -> Result<bool> {
        self.read().await?;
        self.start();
        if self.calls.is_empty() {
            return self.idle().await;
        }
        let (cut, woken) = (self.context.cut.clone(), self.woken.clone());
        tokio::select! {
            Some(attempted) = self.calls.next() => self.settle(attempted),
            () = woken.notified() => self.go_on().await?,
            () = cut.cancelled(), if self.stop != Some(Stop::Lost) => {
                self.stop = Some(Stop::Lost);
            }
        }
        Ok(false)
    }

    /// Waits a second. Calls under way go on.
    async fn wait_for_postgres(&mut self) {
        let mut over = std::pin::pin!(tokio::time::sleep(FAILURE_PAUSE));
        loop {
            tokio::select! {
                Some(attempted) = self.calls.next() => self.settle(attempted),
                () = &mut over => return,
            }
        }
    }

    fn now(&self) -> DateTime<Utc> {
        self.context.shared.client.clock.now()
    }

    /// Starts as many attempts as may run side by side.
    fn start(&mut self) {
        let now = self.now();
        if self.context.shared.is_busy() && self.started.elapsed() > MAX_TURN {
            self.stop = self.stop.or(Some(Stop::Yield));
        }
        if self.context.shared.draining.is_cancelled() {
            self.stop = self.stop.or(Some(Stop::Yield));
        }
        if self.stop.is_some() || self.paused_until.is_some_and(|until| until > now) {
            return;
        }
        let (concurrency, failing) = {
            let standing = self.standing.lock();
            (standing.concurrency, standing.failures > 0)
        };
        // After a failure, attempts are made one by one.
        let max_events = match failing {
            true => 1,
            false => self.context.endpoint.lock().max_events,
        };
        while self.calls.len() < concurrency {
            let batch = self.lanes.next_batch(now, max_events, MAX_BODY_BYTES);
            let Some((_, first)) = batch.first() else {
                break;
            };
            let span = trace::of_follower("webhook", "attempt", "client", first.trace);
            let (context, standing) = (self.context.clone(), self.standing.clone());
            let call = attempt_and_record(context, standing, batch, failing);
            self.calls.push(call.instrument(span).boxed());
        }
    }

    /// Handles the ends of a call's attempts, which are recorded already.
    fn settle(&mut self, attempted: Vec<FinishedAttempt>) {
        // The last first, so that a lane has its unfinished events in their order again.
        attempted
            .into_iter()
            .rev()
            .for_each(|one| self.settle_one(one));
    }

    fn settle_one(&mut self, attempted: FinishedAttempt) {
        let FinishedAttempt { lane, item, end } = attempted;
        let until = self.now() + CROWDED_WAIT;
        match end {
            End::Finished { acked } | End::Overtaken { acked } => {
                // The log still has it as one that is tried again.
                self.has_unloaded |= matches!(end, End::Overtaken { .. });
                self.recorded = self.recorded.max(acked);
                self.standing.lock().window.ack(acked);
                self.lanes.conclude(lane, None);
                self.lanes.drop_acked(acked);
            }
            End::Retry { at, pause_until } => {
                self.paused_until = self.paused_until.max(pause_until);
                self.lanes.conclude(lane, Some(item.not_before(at)));
            }
            End::LeftOut => self.lanes.conclude(lane, Some(item)),
            End::Deferred { at } => self.lanes.conclude(lane, Some(item.not_before(at))),
            End::Unsent | End::Crowded => {
                self.paused_until = self.paused_until.max(Some(until));
                self.lanes.conclude(lane, Some(item));
            }
            End::Online => {
                self.stop = Some(Stop::Online);
                self.lanes.conclude(lane, Some(item));
            }
            End::Called(_) | End::Answered | End::Lost => {
                self.context.cut.cancel();
                self.stop = Some(Stop::Lost);
            }
        }
    }

    /// Decides what to do without any attempt under way. True if the turn is over.
    async fn idle(&mut self) -> Result<bool> {
        let now = self.now();
        let next = self.next_start();
        let wait = next.map(|at| (at - now).max(TimeDelta::zero()));
        if self.stop.is_none()
            && let Some(wait) = wait.filter(|wait| *wait <= MAX_IDLE)
        {
            let (cut, woken) = (self.context.cut.clone(), self.woken.clone());
            let clock = self.context.shared.client.clock.clone();
            tokio::select! {
                () = clock.sleep_until(now + wait) => {}
                () = woken.notified() => self.go_on().await?,
                () = self.context.shared.draining.cancelled() => {}
                () = cut.cancelled() => self.stop = Some(Stop::Lost),
            }
            return Ok(false);
        }
        self.release(wait).await
    }

    /// The time at which something can start; none if nothing waits.
    fn next_start(&self) -> Option<DateTime<Utc>> {
        let next = self.lanes.next_at()?;
        Some(self.paused_until.map_or(next, |until| next.max(until)))
    }

    /// Records the cursor if no attempt has: the agent has acked the event before finished ones, or
    /// the next events have expired.
    async fn record_cursor(&mut self) -> Result<()> {
        let progress = {
            let standing = self.standing.lock();
            if self.stop == Some(Stop::Lost) || standing.window.acked() <= self.recorded {
                return Ok(());
            }
            settle::progress_of(&self.context, &standing)
        };
        match self.context.shared.ledger.advance(progress).await? {
            Some(acked) => self.recorded = acked,
            None => self.stop = Some(Stop::Lost),
        }
        Ok(())
    }

    async fn release(&mut self, wait: Option<TimeDelta>) -> Result<bool> {
        self.record_cursor().await?;
        let Context {
            shared,
            agent,
            turn,
            ..
        } = &self.context;
        let has_open = self.has_unloaded || self.lanes.has_logged() || !self.logged.is_empty();
        let seconds = |wait: TimeDelta| wait.as_seconds_f64();
        let release = match self.stop {
            None => Release {
                due_in: wait.map(seconds),
                has_open,
                // The receiver asked for the pause, so events do not end it.
                is_forced: wait.is_some()
                    && self.paused_until.is_some_and(|until| until > self.now()),
                is_parked: false,
                read_to: (!self.has_more).then_some(self.read_to),
            },
            Some(Stop::Online) => Release {
                due_in: Some(PARKED_SECONDS),
                is_parked: true,
                is_forced: true,
                has_open,
                read_to: None,
            },
            Some(Stop::Yield) => Release {
                due_in: Some(0.0),
                is_parked: false,
                is_forced: true,
                has_open,
                read_to: None,
            },
            Some(Stop::NoRoom) => Release {
                due_in: Some(NO_ROOM_SECONDS),
                is_parked: false,
                is_forced: true,
                has_open,
                read_to: None,
            },
            // Another turn has begun or none may; then this changes nothing. Or Postgres was away.
            Some(Stop::Lost) => Release {
                due_in: Some(LOST_SECONDS),
                is_parked: false,
                is_forced: true,
                has_open: true,
                read_to: None,
            },
        };
        if turns::release(&shared.db, *agent, *turn, release).await? || release.is_forced {
            shared.turn_due.notify_one();
            return Ok(true);
        }
        self.go_on().await?;
        Ok(self.stop == Some(Stop::Lost))
    }

    /// Whether a socket is still online after a turn that it has ended. The turn is then over.
    async fn is_still_parked(&mut self) -> Result<bool> {
        let Context { shared, agent, .. } = &self.context;
        let slot = shared.slots.take_for_webhook(*agent).await;
        if !matches!(slot, WebhookSlot::Online) {
            return Ok(false);
        }
        let acked = self.standing.lock().window.acked();
        let heads = shared.inbox.heads(&[(*agent).into()]).await?;
        if heads.iter().any(|head| head.seq > acked) {
            self.stop = Some(Stop::Online);
        } else {
            self.has_more = false;
        }
        self.release(None).await
    }

    /// Goes on after events came.
    async fn go_on(&mut self) -> Result<()> {
        let Context {
            shared,
            agent,
            turn,
            ..
        } = &self.context;
        match turns::go_on(&shared.db, *agent, *turn).await? {
            None => self.stop = Some(Stop::Lost),
            Some(news) => {
                self.has_more = true;
                self.traces.extend(news.traces);
                if news.has_replays {
                    self.load_replays().await?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        metrics::webhook_turns(-1.0);
    }
}
