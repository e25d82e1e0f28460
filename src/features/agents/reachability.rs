//! Acks as signs of life: the first ack of an unreachable agent makes it active again.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{mark_reachable, store};
use crate::{error::Result, ids::AgentId, supervisor, work::UnitOfWork};

/// The longest wait before a socket's acks are flushed together. Hardly any has an effect.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);

/// Makes agents active again. Clones share the noted agents.
#[derive(Clone)]
pub struct ReachabilityTracker {
    work: UnitOfWork,
    noted: Arc<Mutex<HashSet<AgentId>>>,
    notify: Arc<Notify>,
}

impl ReachabilityTracker {
    /// Spawns the worker that flushes noted agents. It ends with `stop`.
    pub fn start(work: UnitOfWork, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        let reachability = ReachabilityTracker {
            work,
            noted: Arc::default(),
            notify: Arc::default(),
        };
        let (own, until) = (reachability.clone(), stop.clone());
        supervisor::spawn(tasks, "agents.revive", move || {
            own.clone().run(until.clone())
        });
        reachability
    }

    /// Notes an ack over a socket. If a node is killed, the agent's next ack repeats this note.
    pub fn note(&self, agent: AgentId) {
        if self.noted.lock().insert(agent) {
            self.notify.notify_one();
        }
    }

    async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.notify.notified() => tokio::time::sleep(FLUSH_INTERVAL).await,
                () = stop.cancelled() => return,
            }
            let noted = std::mem::take(&mut *self.noted.lock());
            let noted = Vec::from_iter(noted);
            if let Err(error) = self.acked(&noted).await {
                error.log_in("agents.revive", "the agents are tried again in a second");
                noted.into_iter().for_each(|agent| self.note(agent));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Handles acks of these agents. Unreachable ones are active when this returns.
    pub async fn acked(&self, agents: &[AgentId]) -> Result<()> {
        for agent in store::unreachable(self.work.db(), agents).await? {
            self.reactivate(agent).await?;
        }
        Ok(())
    }

    async fn reactivate(&self, agent: AgentId) -> Result<()> {
        let revived = self.work.run("agents.revive", async |tx| {
            match store::lock(tx, agent).await? {
                Some(locked) => mark_reachable(tx, &locked).await,
                None => Ok(()),
            }
        });
        revived.await
    }
}
