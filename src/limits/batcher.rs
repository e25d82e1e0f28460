//! Decisions in batches. Requests that arrive during a call to Redis share the next call, which
//! saves commands. A single request does not wait for others.

use std::{sync::Arc, time::Instant};

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::Windows;
use crate::supervisor;

/// Most requests in a call. Redis decides as many in well below a millisecond.
const MAX_BATCH_DECISIONS: usize = 64;
/// Requests that may wait. More are decided by the node's local share.
const QUEUE_CAPACITY: usize = 8192;

/// A request for a decision: the logs of its rules, and the script's arguments for them.
pub struct Request {
    pub names: Vec<String>,
    pub args: Vec<i64>,
}

/// The script's answer to a request, after the time of Redis's clock.
pub struct Response {
    pub numbers: Vec<i64>,
    /// The time of the answer's arrival.
    pub at: Instant,
}

type Waiting = (Request, oneshot::Sender<Response>);

/// Calls Redis with one batch after another; clones share it.
#[derive(Clone)]
pub struct DecisionBatcher(mpsc::Sender<Waiting>);

impl DecisionBatcher {
    /// Spawns the task that calls Redis; it ends with the last clone.
    pub fn start(windows: Windows, tasks: &TaskTracker) -> Self {
        let (ask, asked) = mpsc::channel(QUEUE_CAPACITY);
        // The queue outlives a task that panics and starts again.
        let asked = Arc::new(Mutex::new(asked));
        supervisor::spawn(tasks, "limits.batch", move || {
            let (windows, asked) = (windows.clone(), asked.clone());
            async move { run(&windows, &mut *asked.lock().await).await }
        });
        DecisionBatcher(ask)
    }

    /// Decides a request, alone or in a batch; none if Redis is away.
    pub async fn ask(&self, question: Request) -> Option<Response> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send((question, answer)).ok()?;
        answered.await.ok()
    }
}

async fn run(windows: &Windows, asked: &mut mpsc::Receiver<Waiting>) {
    let (mut waiting, mut company) = (Vec::with_capacity(MAX_BATCH_DECISIONS), false);
    while asked.recv_many(&mut waiting, MAX_BATCH_DECISIONS).await > 0 {
        if company {
            // Under load more requests are about to come.
            tokio::task::yield_now().await;
            while waiting.len() < MAX_BATCH_DECISIONS
                && let Ok(one) = asked.try_recv()
            {
                waiting.push(one);
            }
        }
        company = waiting.len() > 1;
        let (questions, answers): (Vec<_>, Vec<_>) = waiting.drain(..).unzip();
        let Some(all) = windows.decide(&questions).await else {
            // Requests that came meanwhile have already waited for Redis in vain.
            while asked.try_recv().is_ok() {}
            continue;
        };
        let at = Instant::now();
        answers
            .into_iter()
            .zip(all)
            .for_each(|(to, numbers)| drop(to.send(Response { numbers, at })));
    }
}
