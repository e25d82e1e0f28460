//! The transport of hints: fire and forget, at most once. One implementation, Redis through fred; the trait is the
//! seam at which the client library could be exchanged.

use std::{future::Future, time::Duration};

use fred::{
    clients::SubscriberClient,
    interfaces::{ClientLike, EventInterface, FredResult, PubsubInterface},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::redis::Redis;

/// What comes in from a transport.
pub enum Incoming {
    /// A message on a channel (without prefix handling: as it was named).
    Message {
        /// The channel.
        channel: String,
        /// What it says.
        text: String,
    },
    /// So many messages were thrown away because we were slow.
    Lagged(u64),
}

/// Publishes and subscribes; everything fails fast and may silently lose.
pub trait PubSub: Clone + Send + Sync + 'static {
    /// The receiving half.
    type Inbound: Send;

    /// Sends all of (channel, text) in one go.
    fn publish(&self, messages: Vec<(String, String)>) -> impl Future<Output = bool> + Send;
    /// Listens to channels; true once the server has confirmed.
    fn subscribe(&self, channels: Vec<String>) -> impl Future<Output = bool> + Send;
    /// Stops listening.
    fn unsubscribe(&self, channels: Vec<String>) -> impl Future<Output = bool> + Send;
    /// What arrives from now on.
    fn inbound(&self) -> Self::Inbound;
    /// The next thing that arrived; none when the transport is gone.
    fn next(inbound: &mut Self::Inbound) -> impl Future<Output = Option<Incoming>> + Send;
    /// Throws the subscribing link away and makes a new one.
    fn reconnect(&self) -> impl Future<Output = ()> + Send;
    /// Returns when the subscribing link has been made anew: its subscriptions are gone.
    fn reconnected(&self) -> impl Future<Output = ()> + Send;
}

/// Longest wait for a subscription's confirmation.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Redis pub/sub: commands on the node's command link, subscriptions on a link of their own.
#[derive(Clone)]
pub struct RedisPubSub {
    /// For publishing, within the deadline and the breaker of all commands.
    pub redis: Redis,
    /// For listening.
    pub subscriber: SubscriberClient,
}

impl RedisPubSub {
    async fn confirm(&self, work: impl Future<Output = FredResult<()>>) -> bool {
        matches!(
            tokio::time::timeout(SUBSCRIBE_TIMEOUT, Box::pin(work)).await,
            Ok(Ok(()))
        )
    }
}

impl PubSub for RedisPubSub {
    type Inbound = Receiver<fred::types::Message>;

    async fn publish(&self, messages: Vec<(String, String)>) -> bool {
        let sent = self.redis.run(async |client| {
            let pipeline = client.pipeline();
            for (channel, text) in messages {
                pipeline.publish::<(), _, _>(channel, text).await?;
            }
            pipeline.last::<()>().await
        });
        sent.await.is_ok()
    }

    async fn subscribe(&self, channels: Vec<String>) -> bool {
        self.confirm(self.subscriber.subscribe(channels)).await
    }

    async fn unsubscribe(&self, channels: Vec<String>) -> bool {
        self.confirm(self.subscriber.unsubscribe(channels)).await
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

    async fn reconnect(&self) {
        // A client that knows that it is cut off is at it already, and would queue one more reconnection per call.
        if self.subscriber.is_connected() {
            tokio::time::timeout(SUBSCRIBE_TIMEOUT, self.subscriber.force_reconnection())
                .await
                .ok();
        }
    }

    async fn reconnected(&self) {
        let mut links = self.subscriber.reconnect_rx();
        // Lagged means that there were several: one renewal serves them all.
        if matches!(links.recv().await, Err(RecvError::Closed)) {
            std::future::pending::<()>().await;
        }
    }
}
