//! Keeps a node's tasks alive. A task that must live and panics is logged and counted, and starts
//! again. A task that ends by itself is logged and counted, and ends.
//!
//! Every task of the server begins here. A test lists the few exceptions with their reasons.
//!
//! Why: ADR 20.

use std::{any::Any, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::metrics;

/// The pause before a task starts again, so that a task that always panics does not spin.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Spawns a task that must live. It runs until it returns, and again whenever it panics.
pub fn spawn<F>(tasks: &TaskTracker, task: &'static str, run: impl FnMut() -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    tasks.spawn(Box::pin(supervise(task, run)));
}

/// Spawns a task that must live until `stop`, which drops it.
pub fn spawn_until<F>(
    tasks: &TaskTracker,
    stop: &CancellationToken,
    task: &'static str,
    run: impl FnMut() -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (stop, work) = (stop.clone(), Box::pin(supervise(task, run)));
    tasks.spawn(async move { stop.run_until_cancelled(work).await });
}

/// Spawns a task that ends by itself, such as a connection.
pub fn spawn_once<F>(tasks: &TaskTracker, task: &'static str, work: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    tasks.spawn(contain(task, "the task ends", work));
}

/// Runs `work` to its end, or to a panic. None after a panic, which is logged and counted.
pub fn contain<T>(
    task: &'static str,
    remedy: &'static str,
    work: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    // An async function would reserve the memory of `work` twice.
    AssertUnwindSafe(work)
        .catch_unwind()
        .map(move |outcome| outcome.map_err(|panic| log(task, remedy, &*panic)).ok())
}

async fn supervise<F: Future<Output = ()>>(task: &'static str, mut run: impl FnMut() -> F) {
    while contain(task, "the task starts again", async { run().await })
        .await
        .is_none()
    {
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

/// A formatted message may quote what a client sent, so only a literal is logged. The line of the
/// panic itself has the place.
fn log(task: &'static str, remedy: &'static str, panic: &(dyn Any + Send)) {
    metrics::task_panicked(task);
    let said = panic.downcast_ref::<&str>().copied();
    tracing::error!(operation = task, said, remedy, "a task panicked");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_starts_again_with_its_state() {
        let queue = Arc::new(Mutex::new(vec!["third", "second", "first"]));
        let done = Arc::new(Mutex::new(Vec::new()));
        supervise("test", || {
            let (queue, done) = (queue.clone(), done.clone());
            async move {
                loop {
                    let next = queue.lock().pop();
                    let Some(next) = next else { return };
                    tokio::task::yield_now().await;
                    assert_ne!(next, "second", "planted");
                    done.lock().push(next);
                }
            }
        })
        .await;
        assert_eq!(*done.lock(), ["first", "third"]);
    }

    #[tokio::test]
    async fn what_follows_a_contained_panic_still_runs() {
        assert_eq!(contain("test", "none", async { 1 }).await, Some(1));
        let planted = async { assert_eq!(1, 2, "planted") };
        assert_eq!(contain("test", "none", planted).await, None);
    }
}
