//! Acks as signs of life: an agent that was unreachable is active again with the first.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{State, move_to, store};
use crate::{error::Result, ids::AgentId, work::UnitOfWork};

/// How long the sign of life of a socket may wait for company: nearly none has an effect.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);

/// Brings agents back; clones share what is noted.
#[derive(Clone)]
pub struct ReachabilityTracker {
    work: UnitOfWork,
    noted: Arc<Mutex<HashSet<AgentId>>>,
    bell: Arc<Notify>,
}

impl ReachabilityTracker {
    /// Spawns the worker that looks after those who are noted; it ends with `stop`.
    pub fn start(work: UnitOfWork, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        let reachability = ReachabilityTracker {
            work,
            noted: Arc::default(),
            bell: Arc::default(),
        };
        tasks.spawn(reachability.clone().run(stop.clone()));
        reachability
    }

    /// An agent has acked in passing. What a killed node forgets of this, the agent's next ack says again.
    pub fn note(&self, agent: AgentId) {
        if self.noted.lock().insert(agent) {
            self.bell.notify_one();
        }
    }

    async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.bell.notified() => tokio::time::sleep(FLUSH_INTERVAL).await,
                () = stop.cancelled() => return,
            }
            let noted = std::mem::take(&mut *self.noted.lock());
            let noted = Vec::from_iter(noted);
            if let Err(error) = self.acked(&noted).await {
                error.log();
                noted.into_iter().for_each(|agent| self.note(agent));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// These agents have acked: those that were unreachable are active when this returns.
    pub async fn acked(&self, agents: &[AgentId]) -> Result<()> {
        for agent in store::unreachable(self.work.db(), agents).await? {
            self.reactivate(agent).await?;
        }
        Ok(())
    }

    async fn reactivate(&self, agent: AgentId) -> Result<()> {
        let revived = self.work.run("agents.revive", async |tx| {
            match store::lock(tx, agent).await? {
                Some(locked) if locked.state == State::Unreachable => {
                    move_to(tx, &locked, State::Active).await
                }
                _ => Ok(()),
            }
        });
        revived.await
    }
}
