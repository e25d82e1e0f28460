//! Bounds over all nodes: sockets of an agent, and calls of a limit.

use std::{cell::RefCell, time::Duration};

use futures_util::future::join_all;
use history::{Actor, Admission, Hold, Moment};
use serde_json::Value;

use super::Stage;
use crate::{
    Result,
    crowd::Line,
    scenarios::history::{
        NODES,
        clients::{Name, Player},
    },
};

/// The time that a cluster needs after a harm: nodes find Redis again within a second or two.
pub(super) const RECOVERY: Duration = Duration::from_secs(2);
/// The most sockets of an agent, and how many are tried at each node.
const MAX_SOCKETS: usize = 3;
/// The longest time for which more sockets may be open. A slow answer of Redis lets a node admit
/// one, which is closed within five seconds.
const GRACE: Duration = Duration::from_millis(5_500);
/// The time for which sockets are held.
const HELD_TIMEOUT: Duration = Duration::from_millis(6_500);
/// The limit of a user's lists of conversations, which no run raises: 30 in a minute.
const MAX_CALLS: usize = 30;
const WINDOW: Duration = Duration::from_secs(60);
/// Calls at each node.
const CALLS: usize = 40;

fn nanos(span: Duration) -> Moment {
    Moment::try_from(span.as_nanos()).unwrap_or(Moment::MAX)
}

/// Waits until a socket is admitted.
async fn admitted(line: &mut Line) -> Result<()> {
    loop {
        let frame: Value = serde_json::from_str(&line.hear().await?)?;
        if frame["type"] == "ready" {
            return Ok(());
        }
    }
}

impl Stage {
    /// Opens more sockets of an agent than it may have, at all nodes at once.
    pub(super) async fn crowd_sockets(&self) {
        let (agent, token) = self.replaced.borrow().clone();
        let id = self.id();
        let who = Player::new(&self.world, agent, Name::Agent(token));
        let tries = (0..NODES * MAX_SOCKETS).map(async |n| {
            let mut line = who.line(n % NODES, None).await.ok()?;
            let ready = tokio::time::timeout(HELD_TIMEOUT, admitted(&mut line)).await;
            ready.ok()?.ok()?;
            let from = self.now();
            let closing = async { while line.hear().await.is_ok() {} };
            tokio::time::timeout(HELD_TIMEOUT, closing).await.ok();
            let until = self.now();
            let (bound, grace) = (MAX_SOCKETS, nanos(GRACE));
            Some(Hold {
                id,
                from,
                until,
                bound,
                grace,
            })
        });
        let holds = join_all(tries).await.into_iter().flatten();
        self.found.borrow_mut().holds.extend(holds);
    }

    /// Makes more calls than a limit admits, at all nodes at once. A slow answer of Redis may admit
    /// some too many, and hardly three times in turn: the best of three users counts.
    pub(super) async fn flood_calls(&self) {
        let mut best: Option<Vec<Admission>> = None;
        for user in &self.users[1..] {
            let calls = self.flood(user).await;
            let is_sound = calls.len() <= MAX_CALLS;
            if best.as_ref().is_none_or(|best| calls.len() < best.len()) {
                best = Some(calls);
            }
            if is_sound {
                break;
            }
        }
        self.found
            .borrow_mut()
            .admissions
            .extend(best.into_iter().flatten());
    }

    async fn flood(&self, who: &Player) -> Vec<Admission> {
        let (id, admissions) = (self.id(), RefCell::new(Vec::new()));
        let nodes = (0..NODES).map(async |node| {
            for _ in 0..CALLS {
                let began = self.now();
                if let Some((200, _)) = who.call(node, "GET", "/conversations", None).await {
                    let (ended, window) = (self.now(), nanos(WINDOW));
                    let bound = MAX_CALLS;
                    let call = Admission {
                        id,
                        began,
                        ended,
                        bound,
                        window,
                    };
                    admissions.borrow_mut().push(call);
                }
            }
        });
        join_all(nodes).await;
        admissions.into_inner()
    }
}
