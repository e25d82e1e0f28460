//! The turn of an agent: its events in order, up to three conversations side by side.
//!
//! A turn reads the inbox from the agent's cursor and delivers until nothing is left to do now. It
//! ends early if a socket is online, if the receiver asks for a pause, or if other agents wait.

use std::{collections::HashMap, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    super::{
        DeliveryAttempt, DeliveryStatus,
        caller::json,
        rules::MAX_ATTEMPTS,
        store::{
            deliveries::{self, DeliveryRow},
            turns::{self, Claim, Release},
        },
    },
    Shared,
    attempt::{Attempted, Context, End, Endpoint},
    lanes::{Item, Lane, Lanes, Logged},
    settle::{self, Standing},
    window::Window,
};
use crate::{
    error::Result,
    events,
    limits::{
        quotas::{MAX_MESSAGE_BYTES, MAX_PAGE_BYTES, MAX_PAGE_EVENTS},
        slots::WebhookSlot,
    },
    metrics,
};

/// Events that wait in a turn; no more are read meanwhile.
const MAX_WAITING_EVENTS: usize = 100;
/// How far a turn reads beyond the agent's cursor. A conversation whose receiver fails holds up the
/// others after this many events.
const MAX_EVENTS_AHEAD: i64 = 512;
/// A turn waits this long for a retry. A later one gets a turn of its own.
const MAX_IDLE: TimeDelta = TimeDelta::seconds(5);
/// Length of a turn after which other agents come first.
const MAX_TURN: Duration = Duration::from_secs(5);
/// Until the next look at an agent with a socket. A dead node's sockets count for up to 7 s more,
/// and both together must stay below 10 s.
const PARKED_SECONDS: f64 = 2.0;
/// Wait after a turn that Postgres has ended.
const LOST_SECONDS: f64 = 1.0;
/// Wait for a free slot, or for a node that makes too many calls.
const CROWDED_WAIT: TimeDelta = TimeDelta::milliseconds(200);

/// A turn that this worker holds.
pub struct Turn {
    pub(super) context: Context,
    pub(super) standing: Arc<Mutex<Standing>>,
    woken: Arc<Notify>,
    lanes: Lanes,
    calls: FuturesUnordered<BoxFuture<'static, Attempted>>,
    /// The deliveries of the log that are still open, by their events' numbers.
    logged: HashMap<i64, DeliveryRow>,
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
    /// The turn is lost.
    Lost,
}

impl Turn {
    /// A turn out of its claim. None if its secret cannot be opened.
    pub fn new(shared: Arc<Shared>, claim: &Claim, woken: Arc<Notify>) -> Option<Self> {
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
            read_to,
            has_more: true,
            paused_until: None,
            stop: None,
            started: Instant::now(),
        })
    }

    /// What cuts the turn's calls.
    pub fn cut(&self) -> tokio_util::sync::CancellationToken {
        self.context.cut.clone()
    }

    /// Runs the turn to its end.
    pub async fn run(mut self, claim: Claim) {
        if let Err(error) = self.deliver(&claim).await {
            // The lease ends by itself, and another worker goes on.
            error.log_in("webhooks.turn", "another worker claims it after its lease");
        }
    }

    async fn deliver(&mut self, claim: &Claim) -> Result<()> {
        if claim.was_parked && self.is_still_parked().await? {
            return Ok(());
        }
        if claim.has_open {
            self.load_open().await?;
        }
        loop {
            self.read().await?;
            self.start();
            if self.calls.is_empty() {
                if self.idle().await? {
                    return Ok(());
                }
                continue;
            }
            let (cut, woken) = (self.context.cut.clone(), self.woken.clone());
            tokio::select! {
                Some(attempted) = self.calls.next() => self.settle(attempted).await?,
                () = woken.notified() => self.go_on().await?,
                () = cut.cancelled(), if self.stop != Some(Stop::Lost) => {
                    self.stop = Some(Stop::Lost);
                }
            }
        }
    }

    /// Loads what an earlier turn has left open.
    async fn load_open(&mut self) -> Result<()> {
        let (shared, agent) = (self.context.shared.clone(), self.context.agent);
        let acked = self.standing.lock().window.acked();
        deliveries::overtake(&shared.db, agent, acked).await?;
        for row in deliveries::open(&shared.db, agent).await? {
            let Some(seq) = row.seq else { continue };
            if row.is_replay {
                self.add_replay(row, seq).await?;
            } else if row.attempts >= MAX_ATTEMPTS && row.status == DeliveryStatus::Pending {
                // A worker died during the last attempt.
                let entries = logged(&row, self.now()).interrupted;
                settle::give_up(&self.context, row.id, &entries).await?;
                self.stop = Some(Stop::Lost);
            } else {
                self.logged.insert(seq, row);
            }
        }
        Ok(())
    }

    async fn add_replay(&mut self, row: DeliveryRow, seq: i64) -> Result<()> {
        let inbox = &self.context.shared.inbox;
        let page = inbox.read(self.context.agent.0, seq - 1, 1).await?;
        if let Some(entry) = page.into_iter().find(|entry| entry.seq == seq) {
            let lane = Lane::Replay(row.id);
            self.lanes
                .push(lane, self.item(seq, entry.encoded, Some(row)));
        }
        Ok(())
    }

    fn item(&self, seq: i64, encoded: events::EncodedEvent, row: Option<DeliveryRow>) -> Item {
        let not_before = row.as_ref().and_then(|row| {
            let wait = row.wait_seconds?;
            let wait = TimeDelta::try_milliseconds((wait * 1000.0) as i64)?;
            Some(self.now() + wait)
        });
        Item {
            seq,
            encoded,
            logged: row.map(|row| logged(&row, self.now())),
            not_before,
        }
    }

    fn now(&self) -> DateTime<Utc> {
        self.context.shared.caller.clock.now()
    }

    /// Reads on, while there is room.
    async fn read(&mut self) -> Result<()> {
        while self.has_more && self.stop.is_none() {
            let acked = self.standing.lock().window.acked();
            self.read_to = self.read_to.max(acked);
            let room = (acked + MAX_EVENTS_AHEAD - self.read_to).min(MAX_PAGE_EVENTS);
            if self.lanes.waiting() >= MAX_WAITING_EVENTS || room <= 0 {
                return Ok(());
            }
            let inbox = &self.context.shared.inbox;
            let page = inbox.read(self.context.agent.0, self.read_to, room).await?;
            let bytes: usize = page.iter().map(|entry| entry.encoded.len()).sum();
            // A page ends early only if it would grow too large.
            let is_full = bytes + 2 * MAX_MESSAGE_BYTES >= MAX_PAGE_BYTES.unsigned_abs() as usize;
            self.has_more = page.len() as i64 == room || is_full;
            for entry in page {
                self.add(entry.seq, entry.encoded);
            }
        }
        Ok(())
    }

    fn add(&mut self, seq: i64, encoded: events::EncodedEvent) {
        {
            let mut standing = self.standing.lock();
            // Numbers without an entry have expired.
            (self.read_to + 1..seq).for_each(|gone| standing.window.finish(gone));
            self.read_to = seq;
            if standing.window.is_done(seq) {
                return;
            }
        }
        let lane = events::conversation_of(&encoded).map_or(Lane::Others, Lane::Conversation);
        let row = self.logged.remove(&seq);
        self.lanes.push(lane, self.item(seq, encoded, row));
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
        while self.calls.len() < concurrency
            && let Some((lane, item)) = self.lanes.next(now)
        {
            let context = self.context.clone();
            let standing = self.standing.clone();
            let call = async move {
                let attempted = context.clone().attempt(lane, item, failing).await;
                settle::record(&context, &standing, attempted).await
            };
            self.calls.push(call.boxed());
        }
    }

    /// Handles the end of an attempt, which is recorded already.
    async fn settle(&mut self, attempted: Attempted) -> Result<()> {
        let Attempted { lane, item, end } = attempted;
        let until = self.now() + CROWDED_WAIT;
        match end {
            End::Finished { acked } => {
                self.lanes.conclude(lane, None);
                self.lanes.drop_acked(acked);
            }
            End::Retry { at, pause_until } => {
                self.paused_until = self.paused_until.max(pause_until);
                let item = Item {
                    not_before: Some(at),
                    ..item
                };
                self.lanes.conclude(lane, Some(item));
            }
            End::Busy | End::Full => {
                self.paused_until = self.paused_until.max(Some(until));
                self.lanes.conclude(lane, Some(item));
            }
            End::Online => {
                self.stop = Some(Stop::Online);
                self.lanes.conclude(lane, Some(item));
            }
            End::Called(_) | End::Lost => {
                self.context.cut.cancel();
                self.stop = Some(Stop::Lost);
            }
        }
        Ok(())
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
            let clock = self.context.shared.caller.clock.clone();
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

    async fn release(&mut self, wait: Option<TimeDelta>) -> Result<bool> {
        let Context {
            shared,
            agent,
            turn,
            ..
        } = &self.context;
        let has_open = self.lanes.has_logged() || !self.logged.is_empty();
        let seconds = |wait: TimeDelta| wait.as_seconds_f64();
        let release = match self.stop {
            None => Release {
                due_in: wait.map(seconds),
                has_open,
                // The receiver asked for the pause, so events do not end it.
                is_forced: self.paused_until.is_some_and(|until| until > self.now()),
                is_parked: false,
            },
            Some(Stop::Online) => Release {
                due_in: Some(PARKED_SECONDS),
                is_parked: true,
                is_forced: true,
                has_open,
            },
            Some(Stop::Yield) => Release {
                due_in: Some(0.0),
                is_parked: false,
                is_forced: true,
                has_open,
            },
            // Another turn has begun or none may; then this changes nothing. Or Postgres was away.
            Some(Stop::Lost) => Release {
                due_in: Some(LOST_SECONDS),
                is_parked: false,
                is_forced: true,
                has_open: true,
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
        let heads = shared.inbox.heads(&[agent.0]).await?;
        if heads.iter().any(|head| head.seq > acked) {
            self.stop = Some(Stop::Online);
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
            Some(has_replays) => {
                self.has_more = true;
                if has_replays {
                    self.load_replays().await?;
                }
            }
        }
        Ok(())
    }

    /// Loads deliveries that were asked for by hand during the turn, and hastens open ones.
    async fn load_replays(&mut self) -> Result<()> {
        let (shared, agent) = (self.context.shared.clone(), self.context.agent);
        for row in deliveries::open(&shared.db, agent).await? {
            let Some(seq) = row.seq else { continue };
            if row.is_replay && !self.lanes.has(Lane::Replay(row.id)) {
                self.add_replay(row, seq).await?;
            } else if row.wait_seconds.is_some_and(|wait| wait <= 0.0) {
                self.lanes.hasten(row.id);
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

fn logged(row: &DeliveryRow, now: DateTime<Utc>) -> Logged {
    let finished = i32::try_from(row.log.len()).unwrap_or(i32::MAX);
    let interrupted = (finished + 1..=row.attempts).map(|n| {
        json(&DeliveryAttempt {
            n,
            at: now.into(),
            duration_ms: 0,
            response_status: None,
            error: Some("interrupted".to_owned()),
            replies: Vec::new(),
        })
    });
    let succeeded = row.log.iter().any(|entry| {
        serde_json::from_str::<DeliveryAttempt>(entry).is_ok_and(|entry| entry.error.is_none())
    });
    Logged {
        id: row.id,
        interrupted: interrupted.collect(),
        succeeded,
        is_replay: row.is_replay,
    }
}
