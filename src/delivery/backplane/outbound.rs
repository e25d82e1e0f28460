//! Publishing: each queued message is addressed to the nodes that serve somebody concerned, signed
//! and sent. The directory's answer costs a round trip, which all messages of a batch share.
//!
//! A message to many more principals than there are nodes goes to every live node instead. The list
//! of nodes costs Redis less than the look-ups of so many principals.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    messages::{Hint, LAST_SEQUENCE},
    publisher::{Content, Message, Outgoing},
    pubsub::PubSub,
    worker::{MAX_BATCH_MESSAGES, PubSubWorker},
};
use crate::{
    delivery::ephemeral::EphemeralEnvelope,
    ids::{NodeId, PrincipalId},
    inbox::InboxHead,
    metrics,
    redis::{Away, keys},
};

/// Principals per live node from which a message goes to every node. Fewer look-ups would cost less
/// than the nodes that serve none of the principals (ADR 67 has the figures).
const MIN_BROADCAST_PRINCIPALS_PER_NODE: usize = 8;

/// Most bytes of a pipeline, small enough for Redis to take well within a call's deadline.
const MAX_PIPELINE_BYTES: usize = 512 * 1024;
/// Silence towards a node after which it is told the number of its last message.
const LAST_SEQUENCE_AFTER: Duration = Duration::from_millis(500);

/// The nodes that the messages of a batch may concern.
struct Routes {
    /// The nodes that serve each principal of the messages that are looked up.
    by_principal: HashMap<PrincipalId, Vec<NodeId>>,
    /// Principals from which a message of this batch goes to every live node.
    min_broadcast_principals: usize,
    /// The other nodes that live, if a message goes to all of them.
    live_nodes: Vec<NodeId>,
}

impl Routes {
    fn is_broadcast(&self, content: &Content) -> bool {
        // Most nodes serve few of the owners of unrelated inboxes.
        !matches!(content, Content::Heads { .. })
            && content.principals().count() >= self.min_broadcast_principals
    }
}

/// A signed message for a node.
struct AddressedMessage {
    to: NodeId,
    channel: String,
    signed: String,
    /// The inboxes to look at if it is lost.
    inboxes: Arc<[PrincipalId]>,
}

/// The heads at these positions, and their inboxes.
fn picked(heads: &[InboxHead], positions: &[usize]) -> (Vec<InboxHead>, Arc<[PrincipalId]>) {
    let some: Vec<InboxHead> = positions.iter().map(|n| heads[*n]).collect();
    let inboxes = some.iter().map(|one| one.principal).collect();
    (some, inboxes)
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
            self.publish_addressed(others).await;
        }
    }

    /// Addresses and sends messages in pipelines. Texts exist only for the pipeline at hand.
    async fn publish_addressed(&self, messages: Vec<Message>) {
        let routes = self.routes(&messages).await;
        let (mut pipeline, mut bytes) = (Vec::new(), 0);
        for message in messages {
            for addressed in self.address(message, &routes) {
                bytes += addressed.signed.len();
                if bytes > MAX_PIPELINE_BYTES {
                    bytes = addressed.signed.len();
                    self.publish_pipeline(std::mem::take(&mut pipeline)).await;
                }
                pipeline.push(addressed);
            }
        }
        self.publish_pipeline(pipeline).await;
    }

    async fn publish_control(&self, messages: &[Message]) {
        let channel = self.redis.key(keys::control_channel());
        let sends = messages.iter().filter_map(|message| {
            let Content::Control { text } = &message.content else {
                return None;
            };
            let signed = self.signer.sign(&channel, message.epoch, text);
            Some(self.transport.publish_to_all(channel.clone(), signed))
        });
        for sent in join_all(sends).await {
            metrics::hints(if sent { "published" } else { "lost" }, 1);
        }
    }

    /// The nodes that serve somebody whom these messages concern. Both questions share a round trip.
    async fn routes(&self, messages: &[Message]) -> Result<Routes, Away> {
        let mut routes = Routes {
            by_principal: HashMap::new(),
            min_broadcast_principals: MIN_BROADCAST_PRINCIPALS_PER_NODE
                * self.redis.nodes() as usize,
            live_nodes: Vec::new(),
        };
        let (broadcast, others): (Vec<&Content>, Vec<&Content>) = messages
            .iter()
            .map(|message| &message.content)
            .partition(|content| routes.is_broadcast(content));
        let principals: HashSet<PrincipalId> =
            others.iter().flat_map(|one| one.principals()).collect();
        let principals = Vec::from_iter(principals);
        let (by_principal, live_nodes) = tokio::join!(
            self.transport.find(&principals),
            self.live_peers(!broadcast.is_empty()),
        );
        (routes.by_principal, routes.live_nodes) = (by_principal?, live_nodes?);
        Ok(routes)
    }

    /// The other nodes that live now. The list of the last heartbeat would miss a node that has just
    /// started, and so would miss what that node serves.
    async fn live_peers(&self, is_wanted: bool) -> Result<Vec<NodeId>, Away> {
        if !is_wanted {
            return Ok(Vec::new());
        }
        let mut live_nodes = self.transport.live_nodes().await?;
        live_nodes.retain(|node| *node != self.node);
        Ok(live_nodes)
    }

    fn address(
        &self,
        Message { epoch, content }: Message,
        routes: &Result<Routes, Away>,
    ) -> Vec<AddressedMessage> {
        match (&content, routes) {
            (Content::LastSequence { to }, _) => {
                let message = self.addressed(*to, epoch, LAST_SEQUENCE, Arc::default());
                self.last_sends.lock().remove(to);
                vec![message]
            }
            (_, Ok(routes)) if routes.is_broadcast(&content) => {
                self.address_to_live(epoch, &content, &routes.live_nodes)
            }
            (_, Ok(routes)) => self.address_to_serving(epoch, &content, &routes.by_principal),
            // The nodes that serve these principals look at their inboxes.
            (_, Err(Away)) => {
                metrics::hints("lost", 1);
                self.state.unpublished_hints.note(content.inboxes());
                Vec::new()
            }
        }
    }

    /// Addresses a message to every live node.
    fn address_to_live(
        &self,
        epoch: u64,
        content: &Content,
        live_nodes: &[NodeId],
    ) -> Vec<AddressedMessage> {
        let everybody: Vec<usize> = (0..content.principals().count()).collect();
        let Some((text, inboxes)) = self.encode(content, &everybody) else {
            return Vec::new();
        };
        if live_nodes.is_empty() {
            metrics::hints("unneeded", 1);
        }
        live_nodes
            .iter()
            .map(|to| self.addressed(*to, epoch, &text, inboxes.clone()))
            .collect()
    }

    /// Addresses a message to every node that serves one of its principals.
    fn address_to_serving(
        &self,
        epoch: u64,
        content: &Content,
        routes: &HashMap<PrincipalId, Vec<NodeId>>,
    ) -> Vec<AddressedMessage> {
        let mut by_node: HashMap<NodeId, Vec<usize>> = HashMap::new();
        for (n, principal) in content.principals().enumerate() {
            for node in routes.get(&principal).into_iter().flatten() {
                by_node.entry(*node).or_default().push(n);
            }
        }
        if by_node.is_empty() {
            metrics::hints("unneeded", 1);
        }
        let addressed = by_node.into_iter().filter_map(|(to, concerned)| {
            let (text, inboxes) = self.encode(content, &concerned)?;
            Some(self.addressed(to, epoch, &text, inboxes))
        });
        addressed.collect()
    }

    /// Encodes the message for the recipients at `concerned`, which are positions in its list. Also
    /// returns the inboxes to read if the message is lost.
    fn encode(
        &self,
        content: &Content,
        concerned: &[usize],
    ) -> Option<(String, Arc<[PrincipalId]>)> {
        match content {
            Content::Hint {
                heads,
                encoded,
                trace,
            } => {
                let (some, inboxes) = picked(heads, concerned);
                Some((Hint::encode(self.node, &some, encoded, *trace), inboxes))
            }
            Content::Heads { heads } => {
                let (some, inboxes) = picked(heads, concerned);
                Some((Hint::encode(self.node, &some, &"".into(), None), inboxes))
            }
            Content::Ephemeral { principals, event } => {
                let some: Vec<PrincipalId> = concerned.iter().map(|n| principals[*n]).collect();
                let text = EphemeralEnvelope::encode(self.node, &some, event);
                Some((text, Arc::default()))
            }
            Content::WakeWebhooks { text } => Some((text.clone(), Arc::default())),
            _ => None,
        }
    }

    fn addressed(
        &self,
        to: NodeId,
        epoch: u64,
        text: &str,
        inboxes: Arc<[PrincipalId]>,
    ) -> AddressedMessage {
        let channel = self.redis.key(keys::node_channel(to));
        let signed = self.signer.sign(&channel, epoch, text);
        self.last_sends.lock().insert(to, Instant::now());
        AddressedMessage {
            to,
            channel,
            signed,
            inboxes,
        }
    }

    async fn publish_pipeline(&self, pipeline: Vec<AddressedMessage>) {
        let n = pipeline.len() as u64;
        if n == 0 {
            return;
        }
        let (mut texts, mut receipts) = (Vec::new(), Vec::new());
        for one in pipeline {
            texts.push((one.channel, one.signed));
            receipts.push((one.to, one.inboxes));
        }
        if self.transport.publish_to_nodes(texts).await {
            return metrics::hints("published", n);
        }
        metrics::hints("lost", n);
        let mut last_sends = self.last_sends.lock();
        for (to, inboxes) in receipts {
            last_sends.insert(to, Instant::now());
            self.state.unpublished_hints.note(inboxes.iter().copied());
        }
    }

    /// Tells nodes the number of their last message once they get no others. The last message of a
    /// burst could be lost unnoticed otherwise.
    pub(super) async fn send_last_sequences(&self) {
        loop {
            tokio::time::sleep(LAST_SEQUENCE_AFTER / 2).await;
            let now = Instant::now();
            let mut due = Vec::new();
            for (node, at) in self.last_sends.lock().iter_mut() {
                if now.duration_since(*at) >= LAST_SEQUENCE_AFTER {
                    // Tried again if it does not leave the queue.
                    *at = now;
                    due.push(*node);
                }
            }
            for to in due {
                self.backplane.send_last_sequence(to);
            }
        }
    }
}
