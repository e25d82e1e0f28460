//! The tasks that keep the slots: the heartbeat, the assertion of unconfirmed slots, and the return of
//! slots that have ended.

use std::{sync::Arc, time::Instant};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{ConnectionKind, Slots, lease::EndedConnection};
use crate::{
    ids::{ConnectionId, Principal},
    limits::quotas::{NODE_HEARTBEAT_INTERVAL, NODE_LEASE},
    metrics,
    redis::{Away, Redis, keys},
    supervisor,
};

/// Slots that are asserted or freed at once. Their calls share the connection's round trips.
const MAX_BATCH_LEASES: usize = 256;
/// Heartbeats in which every slot is asserted at least once, in case Redis lost it without a trace.
const HEARTBEATS_PER_ROUND: u64 = 60;

impl Slots {
    /// Spawns the tasks that keep the slots; they end with `stop`. Each heartbeat calls `on_heartbeat`.
    /// Its argument is true after a freeze of the process that cost it its slots.
    pub fn start(
        &self,
        tasks: &TaskTracker,
        stop: &CancellationToken,
        on_heartbeat: impl Fn(bool) + Send + Sync + 'static,
    ) {
        let (slots, on_heartbeat) = (self.clone(), Arc::new(on_heartbeat));
        supervisor::spawn_until(tasks, stop, "slots.heartbeat", move || {
            slots.clone().heartbeat(on_heartbeat.clone())
        });
        let slots = self.clone();
        supervisor::spawn_until(tasks, stop, "slots.assert", move || slots.clone().assert());
        let slots = self.clone();
        supervisor::spawn_until(tasks, stop, "slots.give_back", move || {
            slots.clone().release()
        });
    }

    async fn heartbeat(self, on_heartbeat: Arc<impl Fn(bool)>) {
        let mut reconnects = self.0.redis.reconnects();
        let (mut last, mut heartbeats, mut passes) = (Instant::now(), 0, 0);
        loop {
            let frozen = last.elapsed() > NODE_LEASE;
            on_heartbeat(frozen);
            if frozen {
                // Other connections may have these slots by now, so nothing is asserted. A
                // connection without a callback yet ends when it sets one.
                let rows = std::mem::take(&mut self.held().rows);
                rows.values()
                    .flat_map(|row| &row.holds)
                    .for_each(|hold| hold.loss.notify_lost());
            }
            last = Instant::now();
            if let Ok(live_nodes) = self.0.redis.heartbeat(self.0.node, NODE_LEASE).await {
                // Both are always read, so that an old reconnection never counts as a new one.
                let has_reconnected = Redis::has_reconnected(&mut reconnects);
                let is_forgotten = has_reconnected || !live_nodes.known;
                if let Some(observe) = self.0.on_beat.get() {
                    observe(&live_nodes, is_forgotten);
                }
                if is_forgotten {
                    // All slots are asserted twice. By the second time, every other node has
                    // asserted its own at least once.
                    passes = 2;
                }
                *self.0.live_nodes.lock() = Some((live_nodes, Instant::now()));
                // The second pass begins when the first is over.
                let all = passes == 2 || passes == 1 && self.is_idle();
                passes -= i32::from(all);
                self.mark_unconfirmed(|principal| {
                    all || u64::from(principal.id().as_bytes()[15]) % HEARTBEATS_PER_ROUND
                        == heartbeats % HEARTBEATS_PER_ROUND
                });
                self.0.unconfirmed_notify.notify_one();
                self.0.notify.notify_one();
            }
            heartbeats += 1;
            tokio::time::sleep(NODE_HEARTBEAT_INTERVAL.saturating_sub(last.elapsed())).await;
        }
    }

    /// Whether no slot waits to be asserted.
    fn is_idle(&self) -> bool {
        let held = self.held();
        held.unconfirmed.is_empty() && !held.asserting
    }

    fn mark_unconfirmed(&self, due: impl Fn(&Principal) -> bool) {
        let held = &mut *self.held();
        held.unconfirmed
            .extend(held.rows.keys().filter(|principal| due(principal)));
    }

    /// Asserts the unconfirmed slots, batch by batch. If Redis goes away, the next successful
    /// heartbeat resumes.
    async fn assert(self) {
        loop {
            self.0.unconfirmed_notify.notified().await;
            while let Some(chunk) = self.next_chunk() {
                let asserted = chunk.iter().map(|principal| self.assert_one(*principal));
                let outcomes = futures_util::future::join_all(asserted).await;
                let mut held = self.held();
                held.asserting = false;
                if outcomes.iter().any(Result::is_err) {
                    held.unconfirmed.extend(chunk);
                    break;
                }
            }
        }
    }

    fn next_chunk(&self) -> Option<Vec<Principal>> {
        // A node that has been silent or frozen this long may have lost its slots. The heartbeat
        // must find that out first.
        self.live_nodes()
            .filter(|(_, then)| then.elapsed() < NODE_LEASE)?;
        let mut held = self.held();
        let chunk: Vec<Principal> = held
            .unconfirmed
            .extract_if(|_| true)
            .take(MAX_BATCH_LEASES)
            .collect();
        held.asserting = !chunk.is_empty();
        held.asserting.then_some(chunk)
    }

    async fn assert_one(&self, principal: Principal) -> Result<(), Away> {
        let (max_connections, holds) = match self.held().rows.get(&principal) {
            Some(row) => (row.max_connections, row.holds.clone()),
            // All were given back meanwhile, and another task frees them.
            None => return Ok(()),
        };
        let ours: Vec<String> = holds
            .iter()
            .flat_map(|hold| [hold.id.to_string(), hold.granted.to_string(), hold.what()])
            .collect();
        // The list of live nodes is long, so it is sent only if there are too many connections.
        let answer = self
            .ask("keep", principal, max_connections, false, ours.clone())
            .await?;
        let there: usize = answer
            .first()
            .and_then(|n| n.parse().ok())
            .unwrap_or_default();
        if there > max_connections {
            let answer = self
                .ask("keep", principal, max_connections, true, ours)
                .await?;
            for id in answer.iter().skip(1) {
                if let Some(hold) = holds.iter().find(|hold| hold.id.to_string() == *id) {
                    metrics::slot("lost");
                    self.held().forget(principal, hold.id);
                    hold.loss.notify_lost();
                }
            }
        }
        // Some may have ended between the read and the call, which then asserted them in vain.
        let mut held = self.held();
        let still = held.rows.get(&principal).map_or(&[][..], |row| &row.holds);
        let ended: Vec<_> = holds
            .iter()
            .filter(|hold| still.iter().all(|other| other.id != hold.id))
            .map(|hold| EndedConnection {
                principal,
                id: hold.id,
                kind: hold.kind,
            })
            .collect();
        if !ended.is_empty() {
            held.released.extend(ended);
            drop(held);
            self.0.notify.notify_one();
        }
        Ok(())
    }

    /// Gives back the slots of ended connections at once. Failed calls are repeated at the next
    /// heartbeat.
    async fn release(self) {
        loop {
            self.0.notify.notified().await;
            self.flush().await;
        }
    }

    /// Gives back the slots of all connections that have ended so far.
    pub async fn flush(&self) {
        let released = std::mem::take(&mut self.held().released);
        for chunk in released.chunks(MAX_BATCH_LEASES) {
            let calls = chunk
                .iter()
                .map(async |released| self.release_one(released.principal, released.id).await);
            let outcomes = futures_util::future::join_all(calls).await;
            let (back, failed): (Vec<_>, Vec<_>) = chunk
                .iter()
                .zip(outcomes)
                .partition(|(_, outcome)| outcome.is_ok());
            self.held()
                .released
                .extend(failed.iter().map(|(one, _)| **one));
            let sockets = back
                .iter()
                .filter(|(one, _)| one.kind == ConnectionKind::Websocket);
            let offline: Vec<Principal> = sockets.map(|(one, _)| one.principal).collect();
            if !offline.is_empty() {
                let observers = self.0.on_offline.read();
                observers.iter().for_each(|observe| observe(&offline));
            }
        }
    }

    async fn release_one(&self, principal: Principal, id: ConnectionId) -> Result<(), Away> {
        use fred::interfaces::HashesInterface;
        let key = self.0.redis.key(keys::slots(principal.id()));
        self.0
            .redis
            .run(async |client| client.hdel::<(), _, _>(key, id.to_string()).await)
            .await
    }
}
