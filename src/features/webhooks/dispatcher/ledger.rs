//! The writer of attempts. It gathers the attempts of all turns of a worker: a statement records
//! those that begin, and another one those that are over. Each batch grows while the batch before
//! is written.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::super::store::ledger::{self, Begin, BegunAttempt, Finish, Progress};
use crate::{
    db::Db,
    error::{Error, Result},
    ids::AgentId,
    inbox, supervisor,
};

/// Most attempts of one statement.
const MAX_BATCH_ATTEMPTS: usize = 128;

type BeginAnswer = oneshot::Sender<Result<Option<BegunAttempt>>>;
type FinishAnswer = oneshot::Sender<Result<Option<i64>>>;

enum Entry {
    Begin(Begin, BeginAnswer),
    Finish(Option<Finish>, Progress, FinishAnswer),
}

/// Records attempts. Clones share the writer.
#[derive(Clone)]
pub struct Ledger(mpsc::UnboundedSender<Entry>);

impl Ledger {
    /// Spawns the writer. The turns bound the queue: each waits for its answers.
    pub fn start(db: Db, tasks: &TaskTracker) -> Self {
        let (sender, queue) = mpsc::unbounded_channel();
        // The queue outlives a writer that panics and starts again.
        let queue = Arc::new(Mutex::new(queue));
        supervisor::spawn(tasks, "webhooks.ledger", move || {
            let (db, queue) = (db.clone(), queue.clone());
            async move { write(&db, &mut *queue.lock().await).await }
        });
        Ledger(sender)
    }

    /// Records that an attempt begins. None if its turn is lost.
    pub async fn begin(&self, begin: Begin) -> Result<Option<BegunAttempt>> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Entry::Begin(begin, answer)).ok();
        answered.await.map_err(Error::unavailable)?
    }

    /// Records that an attempt is over, once the returned future is awaited or not. Its outcome is
    /// the agent's cursor; none if its turn is lost. Calls are written in their order.
    pub fn finish(
        &self,
        finish: Finish,
        progress: Progress,
    ) -> impl Future<Output = Result<Option<i64>>> + Send + use<> {
        self.record(Some(finish), progress)
    }

    /// Records the state of a turn without an attempt. Otherwise like [`Ledger::finish`].
    pub fn advance(
        &self,
        progress: Progress,
    ) -> impl Future<Output = Result<Option<i64>>> + Send + use<> {
        self.record(None, progress)
    }

    fn record(
        &self,
        finish: Option<Finish>,
        progress: Progress,
    ) -> impl Future<Output = Result<Option<i64>>> + Send + use<> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Entry::Finish(finish, progress, answer)).ok();
        async { answered.await.map_err(Error::unavailable)? }
    }
}

async fn write(db: &Db, queue: &mut mpsc::UnboundedReceiver<Entry>) {
    let mut batch = Vec::with_capacity(MAX_BATCH_ATTEMPTS);
    while queue.recv_many(&mut batch, MAX_BATCH_ATTEMPTS).await > 0 {
        let (mut begins, mut finishes) = (Vec::new(), Vec::new());
        for entry in batch.drain(..) {
            match entry {
                Entry::Begin(begin, answer) => begins.push((begin, answer)),
                Entry::Finish(finish, progress, answer) => {
                    finishes.push((finish, progress, answer));
                }
            }
        }
        tokio::join!(write_begins(db, begins), write_finishes(db, finishes));
    }
}

async fn write_begins(db: &Db, begins: Vec<(Begin, BeginAnswer)>) {
    if begins.is_empty() {
        return;
    }
    let items: Vec<&Begin> = begins.iter().map(|(begin, _)| begin).collect();
    match ledger::begin(db, &items).await {
        Ok(outcomes) => {
            for ((_, answer), outcome) in begins.into_iter().zip(outcomes) {
                answer.send(Ok(outcome)).ok();
            }
        }
        Err(error) => {
            error.log_in(
                "webhooks.begin",
                "the attempts are not made and their turns end",
            );
            for (_, answer) in begins {
                answer.send(Err(Error::unavailable("not recorded"))).ok();
            }
        }
    }
}

async fn write_finishes(db: &Db, finishes: Vec<(Option<Finish>, Progress, FinishAnswer)>) {
    if finishes.is_empty() {
        return;
    }
    let items: Vec<(AgentId, &Finish)> = finishes
        .iter()
        .filter_map(|(finish, progress, _)| Some((progress.agent, finish.as_ref()?)))
        .collect();
    // The last one of an agent contains the earlier ones.
    let latest: HashMap<AgentId, &Progress> = finishes
        .iter()
        .map(|(_, progress, _)| (progress.agent, progress))
        .collect();
    let latest: Vec<&Progress> = latest.into_values().collect();
    match ledger::finish(db, &items, &latest).await {
        Ok(cursors) => {
            let cursors: HashMap<AgentId, i64> = cursors.into_iter().collect();
            for (_, progress, answer) in finishes {
                answer.send(Ok(cursors.get(&progress.agent).copied())).ok();
            }
            let agents: Vec<AgentId> = cursors.into_keys().collect();
            if let Err(error) = inbox::log_acked(db, &agents).await {
                error.log_in("webhooks.log_reads", "the next ack or the upkeep logs them");
            }
        }
        Err(error) => {
            error.log_in(
                "webhooks.finish",
                "the deliveries are made again with their ids",
            );
            for (_, _, answer) in finishes {
                answer.send(Err(Error::unavailable("not recorded"))).ok();
            }
        }
    }
}
