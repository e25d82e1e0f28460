//! The nodes of a world, their heartbeats, and those who send.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use history::{Heard, History, Send, Span, Stay};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    chance::Chance,
    client,
    faults::{self, CALM, Fault, Faults},
    postgres::{EPOCH, SimulatedPostgres},
    redis::SimulatedRedis,
};
use crate::{
    auth::server_secret::ServerSecret,
    delivery::{self, Backplane, MessageSigner, NoEphemeralEvents, Parts},
    ids::{NodeId, PrincipalId},
    limits::quotas::NODE_LEASE,
    redis::Redis,
};

const NODES: usize = 3;
const PRINCIPALS: usize = 12;
const CONVERSATIONS: usize = 4;
const SENDERS: usize = 4;
const BEAT_INTERVAL: Duration = Duration::from_secs(2);
/// Longer than any life of a world.
const FOR_EVER: Duration = Duration::from_secs(100_000);

/// A node of the world.
pub struct SimulatedNode {
    pub id: NodeId,
    pub backplane: Backplane,
    pub stop: CancellationToken,
}

/// Everything of a seed.
pub struct World {
    pub chance: Chance,
    pub faults: Faults,
    pub redis: SimulatedRedis,
    pub postgres: SimulatedPostgres,
    nodes: Mutex<Vec<Arc<SimulatedNode>>>,
    secret: ServerSecret,
    tasks: TaskTracker,
    is_harmed: AtomicBool,
    tag: AtomicU64,
    began: Instant,
    sends: Mutex<Vec<Send>>,
}

fn principal(n: usize) -> PrincipalId {
    PrincipalId::from_bytes((n as u128 + 1).to_be_bytes())
}

/// Conversations of a pair, of some, and of all.
fn members(conversation: usize) -> Vec<PrincipalId> {
    let members = match conversation {
        0 => 0..2,
        1 => 1..7,
        2 => 0..PRINCIPALS,
        _ => 5..PRINCIPALS,
    };
    members.map(principal).collect()
}

impl World {
    /// Runs inside a runtime whose clock is paused.
    pub async fn run(seed: u64) -> History {
        let chance = Chance::new(seed);
        let faults = Faults::default();
        let world = Arc::new(World {
            redis: SimulatedRedis::new(chance.clone(), faults.clone()),
            postgres: SimulatedPostgres::new(CONVERSATIONS, chance.clone(), faults.clone()),
            nodes: Mutex::default(),
            secret: "A".repeat(44).parse().expect("a secret"),
            tasks: TaskTracker::new(),
            is_harmed: AtomicBool::new(true),
            tag: AtomicU64::new(0),
            began: Instant::now(),
            sends: Mutex::default(),
            chance,
            faults,
        });
        for _ in 0..NODES {
            world.start_node();
        }
        let heard: Vec<Arc<Mutex<Vec<Heard>>>> = (0..PRINCIPALS).map(|_| Arc::default()).collect();
        for (n, own) in heard.iter().enumerate() {
            let listening = client::listen(world.clone(), principal(n), own.clone());
            world.tasks.spawn(listening);
        }
        let senders = (0..SENDERS).map(|_| world.tasks.spawn(world.clone().send_while_harmed()));
        let senders: Vec<_> = senders.collect();
        faults::harm(&world, &world.chance).await;
        world.is_harmed.store(false, Ordering::Relaxed);
        // A send on a frozen node ends late.
        for sender in senders {
            sender.await.expect("no panic");
        }
        world.settle(&heard).await;
        let stay = |conversation, n| Stay {
            conversation,
            principal: n,
            came: Span {
                began: 0,
                ended: Some(0),
            },
            left: None,
        };
        let stays = (0..CONVERSATIONS).flat_map(|conversation| {
            let all = 0..PRINCIPALS;
            let inside = all.filter(move |n| members(conversation).contains(&principal(*n)));
            inside.map(move |n| stay(conversation, n))
        });
        let sends = world.sends.lock().clone();
        History {
            sends,
            reads: Vec::new(),
            heard: heard.iter().map(|own| own.lock().clone()).collect(),
            stays: stays.collect(),
            ends: world.postgres.ends(),
        }
    }

    /// Waits until everybody has heard everything, or longer than that may take.
    async fn settle(&self, heard: &[Arc<Mutex<Vec<Heard>>>]) {
        let until = Instant::now() + CALM;
        let has_all = |(n, own): (usize, &Arc<Mutex<Vec<Heard>>>)| {
            let last = own.lock().last().map_or(0, |last| last.number);
            last == self.postgres.inbox_head(principal(n))
        };
        // A repetition would come in the time after it.
        for _ in 0..2 {
            while !heard.iter().enumerate().all(has_all) && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    pub fn is_harmed(&self) -> bool {
        self.is_harmed.load(Ordering::Relaxed)
    }

    /// Starts a node with the real parts of delivery.
    pub fn start_node(&self) {
        let id = NodeId::from_bytes((u128::from(self.chance.next()) << 32).to_be_bytes());
        let stop = CancellationToken::new();
        let redis = Redis::unconnected("simulated");
        let connection = self.postgres.of(id);
        let backplane = delivery::start(Parts {
            store: &connection,
            redis: &redis,
            transport: self.redis.of(id),
            signer: MessageSigner::new(id, &self.secret, EPOCH),
            secret: &self.secret,
            observer: Arc::new(|_| ()),
            handler: Arc::new(NoEphemeralEvents),
            mark_revoked: Arc::new(|_, _| Box::pin(async { Ok(()) })),
            tasks: &self.tasks,
            stop: &stop,
        });
        let node = Arc::new(SimulatedNode {
            id,
            backplane,
            stop: stop.clone(),
        });
        self.nodes.lock().push(node.clone());
        let (redis, faults) = (self.redis.clone(), self.faults.clone());
        self.tasks.spawn(async move {
            stop.run_until_cancelled(beat(&node, &redis, &faults)).await;
        });
    }

    /// A node that serves.
    pub fn some_node(&self) -> Option<NodeId> {
        self.node_for_client().map(|node| node.id)
    }

    pub fn node_for_client(&self) -> Option<Arc<SimulatedNode>> {
        let nodes = self.nodes.lock();
        match nodes.len() {
            0 => None,
            n => Some(nodes[self.chance.below(n)].clone()),
        }
    }

    /// Kills a node: nothing that it has begun ends.
    pub fn kill_one(&self) {
        let Some(victim) = self.node_for_client() else {
            return;
        };
        self.nodes.lock().retain(|node| node.id != victim.id);
        self.faults.begin(Fault::Dead(victim.id), FOR_EVER);
        victim.stop.cancel();
    }

    fn moment(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).expect("it fits")
    }

    async fn send_while_harmed(self: Arc<Self>) {
        while self.is_harmed() {
            tokio::time::sleep(self.chance.ms(5, 1_500)).await;
            let Some(node) = self.node_for_client() else {
                continue;
            };
            let began = self.moment();
            let tag = self.tag.fetch_add(1, Ordering::Relaxed);
            let conversation = self.chance.below(CONVERSATIONS);
            let sending = self.send(&node, conversation, tag);
            let seq = tokio::select! {
                seq = sending => seq,
                () = node.stop.cancelled() => None,
            };
            let ended = seq.map(|_| self.moment());
            self.sends.lock().push(Send {
                conversation,
                tag,
                span: Span { began, ended },
                seq,
                refused: false,
                not_for: None,
            });
        }
    }

    /// Sends as a unit of work does: the guard, the commit, then the publication.
    async fn send(&self, node: &SimulatedNode, conversation: usize, tag: u64) -> Option<u64> {
        self.faults.runs(node.id).await;
        tokio::time::sleep(self.chance.ms(1, 8)).await;
        if self.faults.is(Fault::PostgresErrors(node.id)) {
            return None;
        }
        let (seq, appended) = self
            .postgres
            .commit(conversation, tag, &members(conversation));
        let appended = [appended];
        let guard = node.backplane.guard(&appended);
        // The answer to the commit is on its way. It may be lost, and the node may die.
        tokio::time::sleep(self.chance.ms(0, 8)).await;
        self.faults.runs(node.id).await;
        if self.is_harmed() && self.chance.percent(3) {
            return None;
        }
        guard.disarm();
        node.backplane.publish(&appended);
        Some(seq)
    }
}

/// The heartbeats of a node, as its connection slots make them.
async fn beat(node: &SimulatedNode, redis: &SimulatedRedis, faults: &Faults) {
    let (on_beat, liveness) = (node.backplane.on_beat(), node.backplane.hub().liveness());
    let mut last = Instant::now();
    loop {
        faults.runs(node.id).await;
        if let Some((live_nodes, is_forgotten)) = redis.beat(node.id) {
            on_beat(&live_nodes, is_forgotten);
        }
        liveness(last.elapsed() > NODE_LEASE);
        last = Instant::now();
        tokio::time::sleep(BEAT_INTERVAL).await;
    }
}
