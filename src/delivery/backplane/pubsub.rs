//! The transport of hints: at most once, without confirmation, and the list of who is to get them.
//! Redis through fred is the implementation. A simulation has another one.

use std::{collections::HashMap, future::Future, time::Duration};

use fred::{
    clients::SubscriberClient,
    interfaces::{ClientLike, EventInterface, FredResult, PubsubInterface},
};
use futures_util::future::try_join_all;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::directory::Directory;
use crate::{
    ids::{NodeId, PrincipalId},
    redis::{Away, Redis},
};

/// Anything that a transport receives.
pub enum Incoming {
    /// A message, on a channel without the prefix.
    Message {
        /// The channel's name, without the prefix.
        channel: String,
        /// The message.
        text: String,
    },
    /// The number of messages that were dropped because this node was slow.
    Lagged(u64),
}

/// Publishes and subscribes. Every call fails fast and may lose messages silently.
pub trait PubSub: Clone + Send + Sync + 'static {
    /// The receiving half.
    type Inbound: Send;

    /// Sends all (channel, text) pairs in a single round trip. The channels are nodes'.
    fn publish_to_nodes(
        &self,
        messages: Vec<(String, String)>,
    ) -> impl Future<Output = bool> + Send;
    /// Sends a text on the channel that every node listens to.
    fn publish_to_all(&self, channel: String, text: String) -> impl Future<Output = bool> + Send;
    /// Subscribes to the channel of a node and to that of all; true once the server has confirmed.
    fn subscribe(&self, node: String, all: String) -> impl Future<Output = bool> + Send;
    /// A receiver of everything that arrives from now on.
    fn inbound(&self) -> Self::Inbound;
    /// The next arrival; none when the transport has ended.
    fn next(inbound: &mut Self::Inbound) -> impl Future<Output = Option<Incoming>> + Send;
    /// Lists this node for `principals`; returns those for which it was not listed.
    fn join(
        &self,
        principals: &[PrincipalId],
    ) -> impl Future<Output = Result<Vec<PrincipalId>, Away>> + Send;
    /// Lists this node for `principals` no more.
    fn leave(&self, principals: &[PrincipalId]) -> impl Future<Output = Result<(), Away>> + Send;
    /// The other nodes that serve some of `principals`, by principal.
    fn find(
        &self,
        principals: &[PrincipalId],
    ) -> impl Future<Output = Result<HashMap<PrincipalId, Vec<NodeId>>, Away>> + Send;
    /// All nodes that live now.
    fn live_nodes(&self) -> impl Future<Output = Result<Vec<NodeId>, Away>> + Send;
    /// Drops the subscribing connection and makes a new one.
    fn reconnect(&self) -> impl Future<Output = ()> + Send;
    /// Returns when the subscribing connection has been remade, which loses its subscriptions.
    fn reconnected(&self) -> impl Future<Output = ()> + Send;
}

/// Longest wait for a subscription's confirmation.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Redis pub/sub: publishes on the node's command connection, and subscribes on a connection of its
/// own.
#[derive(Clone)]
pub struct RedisPubSub {
    /// The command connection, with the deadline and the breaker of all commands.
    pub redis: Redis,
    /// The subscribing connection.
    pub subscriber: SubscriberClient,
    directory: Directory,
}

impl RedisPubSub {
    /// The transport of `node`.
    pub fn new(node: NodeId, redis: &Redis, subscriber: SubscriberClient) -> Self {
        RedisPubSub {
            redis: redis.clone(),
            subscriber,
            directory: Directory::new(node, redis.clone()),
        }
    }

    async fn confirm(&self, work: impl Future<Output = FredResult<()>>) -> bool {
        matches!(
            tokio::time::timeout(SUBSCRIBE_TIMEOUT, Box::pin(work)).await,
            Ok(Ok(()))
        )
    }
}

impl PubSub for RedisPubSub {
    type Inbound = Receiver<fred::types::Message>;

    async fn publish_to_nodes(&self, messages: Vec<(String, String)>) -> bool {
        // A sharded channel lives on the master of its hash slot. A cluster sends every other
        // message to all of its servers.
        let sent = self.redis.run(async |client| {
            if self.redis.is_clustered() {
                let sends = messages
                    .into_iter()
                    .map(|(channel, text)| client.spublish::<(), _, _>(channel, text));
                return try_join_all(sends).await.map(drop);
            }
            let pipeline = client.pipeline();
            for (channel, text) in messages {
                pipeline.publish::<(), _, _>(channel, text).await?;
            }
            pipeline.last::<()>().await
        });
        sent.await.is_ok()
    }

    async fn publish_to_all(&self, channel: String, text: String) -> bool {
        let sent = self
            .redis
            .run(async |client| client.publish::<(), _, _>(channel, text).await);
        sent.await.is_ok()
    }

    async fn subscribe(&self, node: String, all: String) -> bool {
        if !self.redis.is_clustered() {
            return self
                .confirm(self.subscriber.subscribe(vec![node, all]))
                .await;
        }
        self.confirm(self.subscriber.ssubscribe(node)).await
            && self.confirm(self.subscriber.subscribe(all)).await
    }

    fn inbound(&self) -> Self::Inbound {
        self.subscriber.message_rx()
    }

    async fn next(inbound: &mut Self::Inbound) -> Option<Incoming> {
        loop {
            return match inbound.recv().await {
                Ok(message) => match message.value.into_string() {
                    Some(text) => Some(Incoming::Message {
                        channel: message.channel.to_string(),
                        text,
                    }),
                    None => continue,
                },
                Err(RecvError::Lagged(n)) => Some(Incoming::Lagged(n)),
                Err(RecvError::Closed) => None,
            };
        }
    }

    async fn join(&self, principals: &[PrincipalId]) -> Result<Vec<PrincipalId>, Away> {
        self.directory.join(principals).await
    }

    async fn leave(&self, principals: &[PrincipalId]) -> Result<(), Away> {
        self.directory.leave(principals).await
    }

    async fn find(
        &self,
        principals: &[PrincipalId],
    ) -> Result<HashMap<PrincipalId, Vec<NodeId>>, Away> {
        self.directory.find(principals).await
    }

    async fn live_nodes(&self) -> Result<Vec<NodeId>, Away> {
        self.redis.live_nodes().await
    }

    async fn reconnect(&self) {
        // A client that knows of its broken connection reconnects already. It would queue another
        // reconnection per call.
        if self.subscriber.is_connected() {
            tokio::time::timeout(SUBSCRIBE_TIMEOUT, self.subscriber.force_reconnection())
                .await
                .ok();
        }
    }

    async fn reconnected(&self) {
        let mut links = self.subscriber.reconnect_rx();
        // Lagged means that there were several, and a single renewal serves them all.
        if matches!(links.recv().await, Err(RecvError::Closed)) {
            std::future::pending::<()>().await;
        }
    }
}
