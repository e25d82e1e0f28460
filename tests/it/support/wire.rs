//! What nodes publish to each other.

use fred::{
    clients::SubscriberClient,
    interfaces::{ClientLike, EventInterface, PubsubInterface},
};
use tokio::sync::broadcast::Receiver;

use super::world::World;

/// The characters of a seal, which stand before the text.
const SEAL_CHARS: usize = 64;

/// A message between nodes.
#[derive(Clone, Debug)]
pub struct Published {
    /// The channel, without the prefix.
    pub channel: String,
    /// The message with its seal.
    pub sealed: String,
}

impl Published {
    /// The message without its seal.
    pub fn text(&self) -> &str {
        &self.sealed[SEAL_CHARS..]
    }

    /// Whether it is a probe or a tail, which say nothing but numbers.
    fn is_number(&self) -> bool {
        let is_of_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
        self.text().bytes().all(is_of_number)
    }
}

/// Everything that is said to these nodes of a world, and to all, from now on.
pub struct Wire {
    client: SubscriberClient,
    heard: Receiver<fred::types::Message>,
    prefix: String,
}

impl Wire {
    /// Listens to all channels of a world. In a cluster of Redis, `nodes` are the channels that no
    /// pattern meets.
    pub async fn of(world: &World, nodes: &[&str]) -> Self {
        let config = fred::types::config::Config::from_url(world.setting("REDIS_URL"));
        let client = fred::types::Builder::from_config(config.expect("a URL"))
            .build_subscriber_client()
            .expect("a client");
        client.init().await.expect("connected");
        let heard = client.message_rx();
        let prefix = format!("{}:", world.setting("REDIS_PREFIX"));
        let pattern = format!("{prefix}*");
        client.psubscribe(pattern).await.expect("subscribed");
        if client.is_clustered() {
            for node in nodes {
                let subscribed = client.ssubscribe(format!("{prefix}{node}")).await;
                subscribed.expect("subscribed");
            }
        }
        Wire {
            client,
            heard,
            prefix,
        }
    }

    /// The messages since the last call, but for the probes and the tails.
    pub fn take(&mut self) -> Vec<Published> {
        let mut published = Vec::new();
        while let Ok(message) = self.heard.try_recv() {
            let channel = message.channel.to_string();
            let channel = channel.strip_prefix(&self.prefix).expect("one of theirs");
            published.push(Published {
                channel: channel.to_owned(),
                sealed: message.value.into_string().expect("text"),
            });
        }
        published.retain(|one| !one.is_number());
        published
    }

    /// The messages so far, but for the probes and the tails.
    pub async fn recorded(mut self) -> Vec<Published> {
        let published = self.take();
        self.client.quit().await.ok();
        published
    }
}
