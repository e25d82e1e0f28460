//! The agent's inbox: events taken in by their order, handled, retried, acknowledged.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use blindpipe_protocol::{cursor::Cursor, tool_calls::ToolCallOutcome};
use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    core::Core,
    dispatcher::{Dispatcher, Turn},
    handlers::Handlers,
    share::{Lease, Share},
};
use crate::{
    ApiError, Error, InboxEvent, Result,
    hooks::{Hook, warn_loudly},
    transport::{Load, full_jitter},
};

const ACK_INTERVAL: Duration = Duration::from_millis(200);
/// While the service is away, waits before a handler runs again.
const FIRST_OUTAGE_WAIT: Duration = Duration::from_secs(1);
const MAX_OUTAGE_WAIT: Duration = Duration::from_secs(30);
/// Before a store that failed is asked again.
const STORE_RETRY: Duration = Duration::from_secs(1);
const STOP_GRACE: Duration = Duration::from_secs(25);
/// A handler that runs for so long is named in the log: its conversation waits for it, and so do the
/// acknowledgements of all.
const SLOW_HANDLER: Duration = Duration::from_secs(300);

/// How an inbox is worked on.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Conversations that are handled at once.
    pub(super) concurrency: usize,
    /// Waits before a failed handler runs again.
    pub(super) retry_delays: Vec<Duration>,
    /// After the last try the agent stops; without it, the event counts as handled.
    pub(super) stops_at_dead_letter: bool,
}

pub(super) struct Inbox {
    core: Arc<Core>,
    handlers: Handlers,
    pace: Pace,
    /// Cancelled when no more events are taken.
    stopping: CancellationToken,
    /// Cancelled for handlers that did not end in time.
    handlers_stop: CancellationToken,
    /// Where several processes share the conversations.
    share: Option<Share>,
    dispatcher: Mutex<Dispatcher>,
    changed: Notify,
    /// The events that wait or are being handled.
    load: Load,
    /// The cursor of the last event taken in.
    received: Mutex<Option<Cursor>>,
    /// The cursor of the last event that a standby learned from.
    learned: Mutex<Option<Cursor>>,
    /// The history that cursors belong to.
    epoch: Mutex<Option<u64>>,
    /// Handled, and not acknowledged yet.
    ackable: Mutex<Option<Cursor>>,
    progress: Notify,
    /// Numbers up to this one were in the inbox before this connection.
    pub(super) replayed_to: AtomicI64,
    failure: Mutex<Option<Error>>,
}

impl Inbox {
    pub(super) fn new(
        core: Arc<Core>,
        handlers: Handlers,
        pace: Pace,
        stopping: CancellationToken,
        share: Option<Share>,
    ) -> Self {
        Self {
            core,
            handlers,
            pace,
            stopping,
            handlers_stop: CancellationToken::new(),
            share,
            dispatcher: Mutex::default(),
            changed: Notify::new(),
            load: Load::default(),
            received: Mutex::default(),
            learned: Mutex::default(),
            epoch: Mutex::default(),
            ackable: Mutex::default(),
            progress: Notify::new(),
            replayed_to: AtomicI64::default(),
            failure: Mutex::default(),
        }
    }

    /// The place where the next connection goes on.
    pub(super) fn resume(&self, standby: bool) -> Option<Cursor> {
        if standby {
            *self.learned.lock()
        } else {
            *self.received.lock()
        }
    }

    /// Earlier cursors mean nothing any more. Reading begins after the last acknowledgement; after
    /// `begin` if there is one.
    pub(super) fn resync(&self, begin: Option<Cursor>, head: Cursor) {
        *self.epoch.lock() = Some(head.epoch);
        *self.ackable.lock() = None;
        *self.received.lock() = begin;
        *self.learned.lock() = Some(head);
        self.core.session.missed_events();
    }

    /// The connection has ended, and with it this process's share of the conversations. Events that
    /// wait come again. Handlers may go on until another process may have their conversations.
    pub(super) fn lost(&self, was_silent: bool) {
        let Some(share) = &self.share else { return };
        share.lost(was_silent);
        *self.ackable.lock() = None;
        for event in self.dispatcher.lock().give_up() {
            self.load.remove(event.data.as_str().len());
        }
        self.core.turns.give_up();
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        self.share.as_ref().map(Share::current)
    }

    pub(super) fn is_full(&self) -> bool {
        self.load.is_full()
    }

    /// Waits until few enough events wait, so that a backlog stays on the server.
    pub(super) async fn room(&self) {
        self.load.room().await;
    }

    /// Waits until all events taken in are handled, or the agent stops; false if that takes longer
    /// than `wait`.
    pub(super) async fn settled(&self, wait: Duration) -> bool {
        tokio::select! {
            () = self.load.none() => true,
            () = self.stopping.cancelled() => true,
            () = self.core.session.clock.sleep(wait) => false,
        }
    }

    /// Takes an event in. A standby only learns from it.
    pub(super) fn take(&self, event: InboxEvent, standby: bool) {
        if self.stopping.is_cancelled() {
            return;
        }
        self.core.session.observe(&event);
        if standby {
            *self.learned.lock() = Some(event.cursor);
            return;
        }
        self.load.add(event.data.as_str().len());
        *self.received.lock() = Some(event.cursor);
        *self.epoch.lock() = Some(event.cursor.epoch);
        if event.event == "artifact_response"
            && let Some(outcome) = event.data::<ToolCallOutcome>()
        {
            self.core.tool_calls.deliver(outcome);
        }
        self.core.turns.arrive(&event);
        self.dispatcher.lock().push(event);
        self.changed.notify_one();
    }

    /// Handles events until the agent stops, and lets handlers end.
    ///
    /// # Errors
    ///
    /// That of a handler, if it is to stop the agent.
    pub(super) async fn work(&self) -> Result<()> {
        let handling = async {
            self.handle_all().await;
            self.handlers_stop.cancel();
        };
        tokio::select! {
            () = handling => {}
            () = self.grace() => {}
        }
        self.core.save().await;
        match self.failure.lock().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    async fn grace(&self) {
        self.stopping.cancelled().await;
        tokio::time::sleep(STOP_GRACE).await;
        self.handlers_stop.cancel();
    }

    async fn handle_all(&self) {
        let mut running = FuturesUnordered::new();
        loop {
            while !self.stopping.is_cancelled() && running.len() < self.pace.concurrency {
                let Some(turn) = self.dispatcher.lock().next() else {
                    break;
                };
                running.push(Box::pin(self.handle_and_warn(turn)));
            }
            if self.stopping.is_cancelled() && running.is_empty() {
                return;
            }
            tokio::select! {
                Some(done) = running.next(), if !running.is_empty() => self.done(done),
                () = self.changed.notified() => {}
                () = self.stopping.cancelled(), if running.is_empty() => {}
            }
        }
    }

    fn done(&self, (turn, is_handled): (Turn, bool)) {
        if is_handled {
            let reached = self.dispatcher.lock().done(turn.line, turn.number());
            // An acknowledgement of another history would say nothing.
            let is_current =
                |cursor: &Cursor| self.epoch.lock().is_none_or(|it| it == cursor.epoch);
            if let Some(cursor) = reached.filter(is_current) {
                *self.ackable.lock() = Some(cursor);
                self.progress.notify_one();
            }
        }
        self.load.remove(turn.event.data.as_str().len());
    }

    async fn handle_and_warn(&self, turn: Turn) -> (Turn, bool) {
        let (id, event) = (turn.event.event_id, turn.event.event.clone());
        let mut handled = Box::pin(self.handle(turn));
        tokio::select! {
            biased;
            handled = &mut handled => return handled,
            () = self.core.session.clock.sleep(SLOW_HANDLER) => {}
        }
        let seconds = SLOW_HANDLER.as_secs();
        warn_loudly(&format!(
            "the handlers of {event} {id} still run after {seconds} s"
        ));
        handled.await
    }

    /// Handles an event; true if its line may go on.
    async fn handle(&self, turn: Turn) -> (Turn, bool) {
        let Some(lease) = self.lease() else {
            let is_handled = self.try_all(&turn, &self.handlers_stop, || false).await;
            return (turn, is_handled);
        };
        let stop = self.handlers_stop.child_token();
        let _stop = stop.clone().drop_guard();
        let handled = async {
            self.enter(&turn, &lease).await && self.try_all(&turn, &stop, || lease.is_lost()).await
        };
        let is_handled = tokio::select! {
            is_handled = handled => is_handled,
            () = lease.ended() => {
                self.core.turns.cut_off(&turn.event);
                false
            }
        };
        // An event of a lost share comes again, here or elsewhere.
        (turn, is_handled || lease.is_lost())
    }

    /// Takes over what other processes have stored; false if the event is not to be begun.
    async fn enter(&self, turn: &Turn, lease: &Lease) -> bool {
        // Without that, it is not known whether another process has handled it.
        while !self.core.enter(turn.event.conversation_id) {
            tokio::select! {
                () = tokio::time::sleep(STORE_RETRY) => {}
                () = self.stopping.cancelled() => return false,
            }
        }
        !lease.is_lost()
    }

    /// Runs the handlers of an event until they succeed, or the last try has failed. An outage of
    /// the service uses up no try.
    async fn try_all(
        &self,
        turn: &Turn,
        stop: &CancellationToken,
        is_lost: impl Fn() -> bool,
    ) -> bool {
        tokio::select! {
            () = self.core.read_changed_keys(&turn.event) => {}
            () = self.stopping.cancelled() => {}
        }
        let mut delays = self.pace.retry_delays.iter();
        // Another process may have begun it, too.
        let replayed =
            self.share.is_some() || turn.event.seq <= self.replayed_to.load(Ordering::Relaxed);
        let mut outages = 0;
        for attempt in 1.. {
            let event = turn.event.clone();
            let processed = self
                .handlers
                .process(&self.core, event, replayed, stop)
                .await;
            // The lessons of an event are kept before the event is acknowledged.
            let is_kept = self.keep().await;
            let Err(error) = processed else {
                return is_kept;
            };
            if self.stopping.is_cancelled() || is_lost() {
                return false;
            }
            let wait = if error.is_retryable() {
                let wait = full_jitter(outages, FIRST_OUTAGE_WAIT, MAX_OUTAGE_WAIT);
                outages += 1;
                let hinted = error.api().and_then(ApiError::retry_after);
                wait.max(hinted.unwrap_or_default())
            } else if let Some(wait) = delays.next() {
                *wait
            } else {
                return self.dead_letter(&turn.event, error);
            };
            self.core.hooks.call(&Hook::Retry {
                attempt,
                wait,
                what: format!("handler of {}", turn.event.event),
            });
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stopping.cancelled() => return false,
            }
            if is_lost() {
                return false;
            }
        }
        true
    }

    /// Stores what was learned, again and again; false if the agent stops before.
    async fn keep(&self) -> bool {
        while !self.core.save().await {
            tokio::select! {
                () = tokio::time::sleep(STORE_RETRY) => {}
                () = self.stopping.cancelled() => return self.core.save().await,
            }
        }
        true
    }

    fn dead_letter(&self, event: &InboxEvent, error: Error) -> bool {
        let (id, name) = (event.event_id, &event.event);
        let kind = error.kind();
        warn_loudly(&format!("the handlers of {name} {id} have failed: {kind}"));
        self.core.hooks.call(&Hook::DeadLetter {
            event_id: event.event_id,
            event: event.event.clone(),
        });
        if self.pace.stops_at_dead_letter {
            self.failure.lock().replace(error);
            self.stopping.cancel();
        }
        !self.pace.stops_at_dead_letter
    }

    /// Waits until there is something to acknowledge that has waited for a moment.
    pub(super) async fn ack_due(&self) {
        self.progress.notified().await;
        tokio::time::sleep(ACK_INTERVAL).await;
    }

    /// Gives `sent` the cursor to acknowledge now; it answers whether the cursor went out.
    pub(super) fn flush_ack(&self, sent: impl FnOnce(Cursor) -> bool) {
        let mut ackable = self.ackable.lock();
        if let Some(cursor) = *ackable
            && sent(cursor)
        {
            *ackable = None;
        }
    }

    pub(super) fn ackable(&self) -> Option<Cursor> {
        *self.ackable.lock()
    }
}
