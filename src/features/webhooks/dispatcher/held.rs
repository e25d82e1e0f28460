//! The turns that this worker holds.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::ids::{AgentId, CredentialId};

/// The signals of others to a turn.
#[derive(Clone)]
pub struct Signals {
    /// The number of the turn.
    pub turn: i32,
    /// The credential of its calls.
    pub credential: CredentialId,
    /// Cancelled when the turn is lost: calls under way are cut.
    pub cut: CancellationToken,
    /// Notified when events came.
    pub woken: Arc<Notify>,
}

/// The held turns of a worker; clones share them.
#[derive(Clone, Default)]
pub struct HeldTurns(Arc<Mutex<HashMap<AgentId, Signals>>>);

impl HeldTurns {
    /// Adds a turn. An earlier turn of the agent is lost.
    pub fn add(&self, agent: AgentId, signals: Signals) {
        if let Some(earlier) = self.0.lock().insert(agent, signals) {
            earlier.cut.cancel();
        }
    }

    /// Removes a turn, unless a later one has taken its place.
    pub fn remove(&self, agent: AgentId, turn: i32) {
        let mut held = self.0.lock();
        if held.get(&agent).is_some_and(|signals| signals.turn == turn) {
            held.remove(&agent);
        }
    }

    /// Cuts the turns whose calls one of `credentials` authorised.
    pub fn cut(&self, credentials: &[CredentialId]) {
        for signals in self.0.lock().values() {
            if credentials.contains(&signals.credential) {
                signals.cut.cancel();
            }
        }
    }

    /// Wakes an agent's turn. False if it is not held here.
    pub fn wake(&self, agent: AgentId) -> bool {
        match self.0.lock().get(&agent) {
            Some(signals) => {
                signals.woken.notify_one();
                true
            }
            None => false,
        }
    }

    /// The agents and numbers of all turns.
    pub fn all(&self) -> Vec<(AgentId, i32)> {
        let held = self.0.lock();
        held.iter()
            .map(|(agent, signals)| (*agent, signals.turn))
            .collect()
    }

    /// Cuts the turns of `asked` that are not among those that still count, and wakes those with
    /// new events.
    pub fn apply(&self, asked: &[(AgentId, i32)], counting: &[(AgentId, i32, bool)]) {
        let counting: HashMap<(AgentId, i32), bool> = counting
            .iter()
            .map(|(agent, turn, is_woken)| ((*agent, *turn), *is_woken))
            .collect();
        let held = self.0.lock();
        for (agent, turn) in asked {
            let Some(signals) = held.get(agent).filter(|signals| signals.turn == *turn) else {
                continue;
            };
            match counting.get(&(*agent, *turn)) {
                None => signals.cut.cancel(),
                Some(true) => signals.woken.notify_one(),
                Some(false) => {}
            }
        }
    }
}
