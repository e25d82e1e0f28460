//! The faults of the world, and the nemesis that chooses them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{chance::Chance, world::World};
use crate::ids::NodeId;

/// The time for which nothing is harmed before the end: longer than the rarest check.
pub const CALM: Duration = Duration::from_secs(75);
/// The time for which things are harmed.
const HARM: Duration = Duration::from_secs(20);

/// The faults that are under way. Clones share them.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Present>>);

#[derive(Default)]
struct Present {
    /// The end of each fault.
    until: HashMap<Fault, Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// Messages between nodes are lost, without a sign for their sender.
    DropHints,
    DoubleHints,
    /// Messages between two nodes take up to a second, so those of several senders overtake each
    /// other.
    DelayHints,
    /// Redis is away. Subscriptions are lost.
    RedisAway,
    /// A node gets errors from Postgres.
    PostgresErrors(NodeId),
    /// A node stands still: its calls do not end, and nothing reaches it.
    Frozen(NodeId),
    /// A node has died, for ever.
    Dead(NodeId),
}

impl Faults {
    pub fn is(&self, fault: Fault) -> bool {
        let now = Instant::now();
        self.0
            .lock()
            .until
            .get(&fault)
            .is_some_and(|end| *end > now)
    }

    pub fn begin(&self, fault: Fault, time: Duration) {
        self.0.lock().until.insert(fault, Instant::now() + time);
    }

    /// Waits until the node runs, if it is frozen; for ever, if it is dead.
    pub async fn runs(&self, node: NodeId) {
        if self.is(Fault::Dead(node)) {
            std::future::pending::<()>().await;
        }
        loop {
            let end = self.0.lock().until.get(&Fault::Frozen(node)).copied();
            match end.filter(|end| *end > Instant::now()) {
                Some(end) => tokio::time::sleep_until(end).await,
                None => break,
            }
        }
        if self.is(Fault::Dead(node)) {
            std::future::pending::<()>().await;
        }
    }
}

/// Harms the world for a while, now and then in several ways at once.
pub async fn harm(world: &World, chance: &Chance) {
    let until = Instant::now() + HARM;
    while Instant::now() < until {
        tokio::time::sleep(chance.ms(100, 2_000)).await;
        let time = chance.ms(200, 6_000);
        let faults = &world.faults;
        match chance.below(8) {
            0 => faults.begin(Fault::DropHints, time),
            1 => faults.begin(Fault::DoubleHints, time),
            2 => faults.begin(Fault::DelayHints, time),
            3 => world.redis.go_away(time),
            4 => world.redis.flush(),
            5 => {
                if let Some(node) = world.some_node() {
                    faults.begin(Fault::PostgresErrors(node), time);
                }
            }
            6 => {
                if let Some(node) = world.some_node() {
                    faults.begin(Fault::Frozen(node), 2 * time);
                }
            }
            _ => {
                world.kill_one();
                tokio::time::sleep(chance.ms(1, 3_000)).await;
                world.start_node();
            }
        }
    }
}
