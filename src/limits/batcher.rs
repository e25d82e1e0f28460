//! Decisions that are asked for while a call to Redis is under way are gathered and decided by the next one, which saves
//! commands. Who asks alone does not wait for anybody.

use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::Windows;

/// Calls that are decided at once: as many as Redis decides in well below a millisecond.
const MAX_BATCH_DECISIONS: usize = 64;
/// Calls that may wait; more are decided by the node's own share.
const QUEUE_CAPACITY: usize = 8192;

/// What one call wants decided: the logs of its rules, and the script's arguments for them.
pub struct Request {
    pub names: Vec<String>,
    pub args: Vec<i64>,
}

/// The moment, then what the script says about one call.
pub struct Response {
    pub numbers: Vec<i64>,
    /// When it came.
    pub at: Instant,
}

type Waiting = (Request, oneshot::Sender<Response>);

/// One call to Redis at a time; clones share it.
#[derive(Clone)]
pub struct DecisionBatcher(mpsc::Sender<Waiting>);

impl DecisionBatcher {
    /// Spawns the task that asks; it ends with the last clone.
    pub fn start(windows: Windows, tasks: &TaskTracker) -> Self {
        let (ask, asked) = mpsc::channel(QUEUE_CAPACITY);
        tasks.spawn(run(windows, asked));
        DecisionBatcher(ask)
    }

    /// Has it decided, alone or together with others; none if Redis is away.
    pub async fn ask(&self, question: Request) -> Option<Response> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send((question, answer)).ok()?;
        answered.await.ok()
    }
}

async fn run(windows: Windows, mut asked: mpsc::Receiver<Waiting>) {
    let (mut waiting, mut company) = (Vec::with_capacity(MAX_BATCH_DECISIONS), false);
    while asked.recv_many(&mut waiting, MAX_BATCH_DECISIONS).await > 0 {
        if company {
            // Where many ask, more are about to.
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
            // Whoever has come meanwhile has waited for the same silence.
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
