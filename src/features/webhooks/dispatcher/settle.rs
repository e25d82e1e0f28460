//! The record of an attempt that is over: the log, the cursor, the next attempt or the end of the
//! agent's reachability.

use std::time::Duration;

use chrono::TimeDelta;
use parking_lot::Mutex;

use super::{
    super::{
        DeliveryStatus,
        client::json,
        rules::{self, Verdict},
        store::{
            ledger::{self, Finish, Progress},
            stops, turns,
        },
    },
    attempt::{Call, Context, End, FinishedAttempt},
    lanes::{Item, LoggedDelivery},
    window::Window,
};
use crate::{error::Result, events, features::agents, ids::DeliveryId};

/// The state of a turn that its attempts change.
pub struct Standing {
    pub window: Window,
    /// Failed attempts since the last success.
    pub failures: i32,
    /// Attempts that may run side by side: 1 after a failure, and another after each success.
    pub concurrency: usize,
}

/// Records an attempt. The outcome of a call becomes [`End::Finished`], [`End::Overtaken`],
/// [`End::Retry`] or [`End::Lost`].
pub async fn record(
    context: &Context,
    standing: &Mutex<Standing>,
    attempted: FinishedAttempt,
) -> FinishedAttempt {
    let FinishedAttempt {
        lane,
        mut item,
        end,
    } = attempted;
    let end = match (end, item.logged.take()) {
        (End::Called(call), Some(logged)) => {
            let settled = settle(context, standing, &item, &logged, call).await;
            item.logged = Some(LoggedDelivery {
                interrupted: Vec::new(),
                ..logged
            });
            settled.unwrap_or_else(|error| {
                error.log_in("webhooks.settle", "the delivery is made again with its id");
                End::Lost
            })
        }
        (End::Answered, None) => {
            let left_out = leave_out(context, standing, &item).await;
            left_out.unwrap_or_else(|error| {
                error.log_in("webhooks.leave_out", "the next turn leaves the event out");
                End::Lost
            })
        }
        (End::Unsent, Some(logged)) => {
            let unsent = {
                let standing = standing.lock();
                let unsent = record_of(context, &standing, &logged, DeliveryStatus::Failed);
                unsent.uncounted().write(context)
            };
            item.logged = Some(logged);
            unsent.await.map_or(End::Lost, |_| End::Unsent)
        }
        (end, logged) => {
            item.logged = logged;
            end
        }
    };
    FinishedAttempt { lane, item, end }
}

async fn settle(
    context: &Context,
    standing: &Mutex<Standing>,
    item: &Item,
    logged: &LoggedDelivery,
    call: Call,
) -> Result<End> {
    let entry = json(&call.attempt);
    if logged.is_replay {
        let status = rules::replayed(call.succeeded, logged.succeeded);
        let written = {
            let standing = standing.lock();
            let replayed = record_of(context, &standing, logged, status);
            replayed.entry(entry).write(context)
        };
        return written.await.map(end_of);
    }
    if call.succeeded {
        return succeed(context, standing, item, logged, entry).await;
    }
    if call.is_first_failure {
        set_last_error(context, call.attempt.error.as_deref()).await?;
    }
    let status = call.attempt.response_status;
    let pause = rules::pause(status, call.retry_after);
    let fraction = context.shared.client.random.fraction();
    let backoff = context.shared.settings.backoff;
    match rules::judge(backoff, call.attempt.n, status, pause, fraction) {
        Verdict::GiveUp => {
            let mut entries = logged.interrupted.clone();
            entries.push(entry);
            give_up(context, logged.id, &entries).await?;
            Ok(End::Lost)
        }
        Verdict::Retry(wait) => {
            let retried = retry(context, standing, logged, entry, wait, pause).await?;
            Ok(match retried {
                None => End::Lost,
                Some((acked, _)) if acked >= item.seq => End::Overtaken { acked },
                Some((_, end)) => end,
            })
        }
    }
}

/// Records a success: the window moves, and another attempt may run beside this one.
async fn succeed(
    context: &Context,
    standing: &Mutex<Standing>,
    item: &Item,
    logged: &LoggedDelivery,
    entry: String,
) -> Result<End> {
    let (written, recovered) = {
        let mut standing = standing.lock();
        let recovered = standing.failures > 0;
        standing.window.finish(item.seq);
        standing.failures = 0;
        let most = context.shared.settings.conversations;
        standing.concurrency = most.min(standing.concurrency + 1);
        let success = record_of(context, &standing, logged, DeliveryStatus::Success);
        (success.entry(entry).write(context), recovered)
    };
    let written = written.await?;
    if recovered {
        set_last_error(context, None).await?;
    }
    Ok(end_of(written))
}

/// Moves the window over the event of a stop that the receiver has answered before. The log has
/// that call.
async fn leave_out(context: &Context, standing: &Mutex<Standing>, item: &Item) -> Result<End> {
    let written = {
        let mut standing = standing.lock();
        standing.window.finish(item.seq);
        let progress = progress_of(context, &standing);
        context.shared.ledger.advance(progress)
    };
    let written = written.await?;
    if let Some(event) = events::id_of(&item.encoded) {
        stops::forget(&context.shared.db, context.agent, event).await?;
    }
    Ok(end_of(written))
}

/// Records a failure that is retried after `wait`. `pause` holds up the whole turn. Answers the
/// agent's cursor and the retry; none if the turn is lost.
async fn retry(
    context: &Context,
    standing: &Mutex<Standing>,
    logged: &LoggedDelivery,
    entry: String,
    wait: Duration,
    pause: Option<Duration>,
) -> Result<Option<(i64, End)>> {
    let now = context.shared.client.clock.now();
    let after = |wait| now + TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
    let written = {
        let mut standing = standing.lock();
        standing.failures += 1;
        standing.concurrency = 1;
        let mut failed = record_of(context, &standing, logged, DeliveryStatus::Failed);
        failed.finish.retry_in = Some(wait.as_secs_f64());
        failed.progress.pause = pause.map(|pause| pause.as_secs_f64());
        failed.entry(entry).write(context)
    };
    let retry = End::Retry {
        at: after(wait),
        pause_until: pause.map(after),
    };
    Ok(written.await?.map(|acked| (acked, retry)))
}

/// Ends the delivery and the turn, and makes the agent unreachable: all in one transaction.
pub async fn give_up(context: &Context, delivery: DeliveryId, entries: &[String]) -> Result<()> {
    let Context {
        shared,
        agent,
        turn,
        ..
    } = context;
    let given_up = shared.work.run("webhooks.give_up", async |tx| {
        let Some(locked) = agents::lock(tx, *agent).await? else {
            return Ok(());
        };
        if turns::holds(tx, *agent, *turn).await? {
            ledger::exhaust(tx, *agent, delivery, entries).await?;
            turns::close(tx, *agent).await?;
            agents::mark_unreachable(tx, &locked).await?;
        }
        Ok(())
    });
    given_up.await
}

async fn set_last_error(context: &Context, error: Option<&str>) -> Result<()> {
    ledger::set_last_error(&context.shared.db, context.agent, error).await
}

fn end_of(written: Option<i64>) -> End {
    written.map_or(End::Lost, |acked| End::Finished { acked })
}

/// A record that is about to be written.
struct Record {
    finish: Finish,
    progress: Progress,
}

/// A record of the present standing. It is queued under the standing's lock, so that a later window
/// is never overwritten by an earlier one.
fn record_of(
    context: &Context,
    standing: &Standing,
    logged: &LoggedDelivery,
    status: DeliveryStatus,
) -> Record {
    Record {
        finish: Finish {
            delivery: logged.id,
            status,
            entries: logged.interrupted.clone(),
            retry_in: None,
            is_uncounted: false,
        },
        progress: progress_of(context, standing),
    }
}

/// The present standing, to be queued under its lock.
pub fn progress_of(context: &Context, standing: &Standing) -> Progress {
    Progress {
        agent: context.agent,
        turn: context.turn,
        epoch: context.epoch.cast_signed(),
        done: standing.window.as_multirange(),
        acked: standing.window.acked(),
        failures: standing.failures,
        pause: None,
    }
}

impl Record {
    fn entry(mut self, entry: String) -> Self {
        self.finish.entries.push(entry);
        self
    }

    /// The attempt does not count: nothing was sent.
    fn uncounted(mut self) -> Self {
        self.finish.is_uncounted = true;
        self.finish.retry_in = Some(0.0);
        self
    }

    /// Queues the record at once; its outcome is the agent's cursor.
    fn write(self, context: &Context) -> impl Future<Output = Result<Option<i64>>> + Send + use<> {
        context.shared.ledger.finish(self.finish, self.progress)
    }
}
