//! Publishing: each queued message is addressed to the nodes that serve somebody concerned, sealed
//! and sent. The directory's answer costs a round trip, which all messages of a batch share.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use uuid::Uuid;

use super::{
    messages::{Hint, TAIL},
    publisher::{Content, Message, Outgoing},
    pubsub::PubSub,
    worker::{MAX_BATCH_MESSAGES, PubSubWorker},
};
use crate::{
    delivery::ephemeral::EphemeralEnvelope,
    ids::NodeId,
    inbox::Delivery,
    metrics,
    redis::{Away, keys},
};

/// Most bytes of a pipeline, small enough for Redis to take well within a call's deadline.
const MAX_PIPELINE_BYTES: usize = 512 * 1024;
/// Silence towards a node after which it is told the number of its last message.
const TAIL_AFTER: Duration = Duration::from_millis(500);

/// The nodes that serve principals.
type Places = HashMap<Uuid, Vec<NodeId>>;

/// A sealed message for a node.
struct Addressed {
    to: NodeId,
    channel: String,
    sealed: String,
    /// The inboxes to look at if it is lost.
    inboxes: Vec<Uuid>,
}

impl<P: PubSub> PubSubWorker<P> {
    /// Sends waiting messages in batches, since waiting for each would cost round trips per
    /// message.
    pub(super) async fn publish(self: Arc<Self>, outgoing: &mut Outgoing) {
        let mut batch = Vec::with_capacity(MAX_BATCH_MESSAGES);
        while outgoing.next(&mut batch).await {
            let (control, others): (Vec<Message>, Vec<Message>) = batch
                .drain(..)
                .partition(|one| matches!(one.content, Content::Control { .. }));
            self.publish_control(&control).await;
            let places = self.places(&others).await;
            for piece in pieces(self.address(others, &places)) {
                self.publish_piece(piece).await;
            }
        }
    }

    async fn publish_control(&self, messages: &[Message]) {
        let channel = self.redis.key(keys::control_channel());
        let sends = messages.iter().filter_map(|message| {
            let Content::Control { text } = &message.content else {
                return None;
            };
            let sealed = self.seal.seal(&channel, message.epoch, text);
            Some(self.transport.publish_to_all(channel.clone(), sealed))
        });
        for sent in join_all(sends).await {
            metrics::hints(if sent { "published" } else { "lost" }, 1);
        }
    }

    /// The nodes that serve somebody whom these messages concern.
    async fn places(&self, messages: &[Message]) -> Result<Places, Away> {
        let principals: HashSet<Uuid> = messages
            .iter()
            .flat_map(|message| message.content.principals())
            .collect();
        if principals.is_empty() {
            return Ok(Places::new());
        }
        self.directory.find(&Vec::from_iter(principals)).await
    }

    fn address(&self, messages: Vec<Message>, places: &Result<Places, Away>) -> Vec<Addressed> {
        let mut addressed = Vec::new();
        for Message { epoch, content } in messages {
            match (&content, places) {
                (Content::Answer { to, event }, _) => {
                    let text = EphemeralEnvelope::encode(self.node, &[], event);
                    addressed.push(self.addressed(*to, epoch, &text, Vec::new()));
                }
                (Content::Tail { to }, _) => {
                    let tail = self.addressed(*to, epoch, TAIL, Vec::new());
                    self.tails.lock().remove(to);
                    addressed.push(tail);
                }
                (_, Ok(places)) => self.address_to_all(epoch, &content, places, &mut addressed),
                // Whoever serves these principals looks at their inboxes.
                (_, Err(Away)) => {
                    metrics::hints("lost", 1);
                    self.state.losses.note(content.inboxes());
                }
            }
        }
        addressed
    }

    /// Addresses a message to every node that serves one of its principals.
    fn address_to_all(
        &self,
        epoch: u64,
        content: &Content,
        places: &Places,
        addressed: &mut Vec<Addressed>,
    ) {
        let mut by_node: HashMap<NodeId, Vec<usize>> = HashMap::new();
        for (n, principal) in content.principals().enumerate() {
            for node in places.get(&principal).into_iter().flatten() {
                by_node.entry(*node).or_default().push(n);
            }
        }
        if by_node.is_empty() {
            metrics::hints("unneeded", 1);
        }
        for (to, concerned) in by_node {
            let (text, inboxes) = match content {
                Content::Hint {
                    deliveries,
                    encoded,
                    trace,
                } => {
                    let some: Vec<Delivery> = concerned.iter().map(|n| deliveries[*n]).collect();
                    let inboxes = some.iter().map(|one| one.principal).collect();
                    (Hint::encode(self.node, &some, encoded, *trace), inboxes)
                }
                Content::Ephemeral { principals, event } => {
                    let some: Vec<Uuid> = concerned.iter().map(|n| principals[*n]).collect();
                    let text = EphemeralEnvelope::encode(self.node, &some, event);
                    (text, Vec::new())
                }
                _ => continue,
            };
            addressed.push(self.addressed(to, epoch, &text, inboxes));
        }
    }

    fn addressed(&self, to: NodeId, epoch: u64, text: &str, inboxes: Vec<Uuid>) -> Addressed {
        let channel = self.redis.key(keys::node_channel(to));
        let sealed = self.seal.seal(&channel, epoch, text);
        self.tails.lock().insert(to, Instant::now());
        Addressed {
            to,
            channel,
            sealed,
            inboxes,
        }
    }

    async fn publish_piece(&self, piece: Vec<Addressed>) {
        let n = piece.len() as u64;
        let (mut texts, mut receipts) = (Vec::new(), Vec::new());
        for one in piece {
            texts.push((one.channel, one.sealed));
            receipts.push((one.to, one.inboxes));
        }
        if self.transport.publish_to_nodes(texts).await {
            return metrics::hints("published", n);
        }
        metrics::hints("lost", n);
        let mut tails = self.tails.lock();
        for (to, inboxes) in receipts {
            tails.insert(to, Instant::now());
            self.state.losses.note(inboxes);
        }
    }

    /// Tells nodes the number of their last message once they get no others. The last message of a
    /// burst could be lost unnoticed otherwise.
    pub(super) async fn send_tails(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TAIL_AFTER / 2).await;
            let now = Instant::now();
            let mut due = Vec::new();
            for (node, at) in self.tails.lock().iter_mut() {
                if now.duration_since(*at) >= TAIL_AFTER {
                    // Tried again if it does not leave the queue.
                    *at = now;
                    due.push(*node);
                }
            }
            for to in due {
                self.backplane.send_tail(to);
            }
        }
    }
}

fn pieces(messages: Vec<Addressed>) -> Vec<Vec<Addressed>> {
    let mut pieces = vec![Vec::new()];
    let mut bytes = 0;
    for message in messages {
        bytes += message.sealed.len();
        if bytes > MAX_PIPELINE_BYTES {
            pieces.push(Vec::new());
            bytes = message.sealed.len();
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(message);
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}
