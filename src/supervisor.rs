//! Keeps a node's tasks alive. A task that panics is logged and counted, and starts again.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;

use crate::metrics;

/// The pause before a task starts again, so that a task that always panics does not spin.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Runs a task until it returns, and again whenever it panics.
pub async fn supervise<F: Future<Output = ()>>(task: &'static str, mut run: impl FnMut() -> F) {
    while let Err(panic) = AssertUnwindSafe(run()).catch_unwind().await {
        metrics::task_panicked(task);
        let said = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        tracing::error!(
            operation = task,
            said,
            remedy = "the task starts again",
            "a task panicked"
        );
        tokio::time::sleep(RESTART_PAUSE).await;
    }
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
}
