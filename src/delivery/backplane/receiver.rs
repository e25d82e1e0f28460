//! The task that handles messages of other nodes.

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::revocation::RevocationReason;
use futures_util::FutureExt;
use uuid::Uuid;

use super::{
    Announcement,
    messages::{ControlMessage, Hint, Hints, known_reason},
    pubsub::{Incoming, PubSub},
    seal::{Opened, Opener, Refusal},
    worker::PubSubWorker,
};
use crate::{
    delivery::{ephemeral::EphemeralEnvelope, hub::Wakeups},
    events::EncodedEvent,
    inbox::Delivery,
    metrics,
    redis::keys,
};

/// The names of the channels, with the cluster's prefix.
struct Channels {
    /// The beginning of the inboxes' channels.
    inboxes: String,
    own: String,
    many: String,
}

impl<P: PubSub> PubSubWorker<P> {
    /// Handles arrivals until the transport ends.
    pub(super) async fn receive(self: Arc<Self>) {
        let mut inbound = self.transport.inbound();
        let channels = Channels {
            inboxes: self.redis.key("p:"),
            own: self.redis.key(keys::node_channel(self.node)),
            many: self.redis.key(keys::many_channel()),
        };
        let mut opener = Opener::new(&self.seal);
        let mut wakeups = Wakeups::default();
        let mut next = P::next(&mut inbound).await;
        while let Some(incoming) = next {
            match incoming {
                Incoming::Lagged(n) => {
                    metrics::hints("lagged", n);
                    self.state.suspect();
                }
                Incoming::Message { channel, text } => match opener.open(&channel, &text) {
                    Ok(opened) => self.receive_opened(&channels, &channel, &opened, &mut wakeups),
                    Err(Refusal::Unsealed) => metrics::hints("unsealed", 1),
                    Err(Refusal::Replayed) => metrics::hints("replayed", 1),
                },
            }
            // Messages that arrived together wake their subscriptions together.
            let soon = P::next(&mut inbound).now_or_never();
            if soon.is_none() || wakeups.are_many() {
                wakeups.wake();
            }
            next = match soon {
                Some(next) => next,
                None => P::next(&mut inbound).await,
            };
        }
    }

    fn receive_opened(
        &self,
        channels: &Channels,
        channel: &str,
        opened: &Opened<'_>,
        wakeups: &mut Wakeups,
    ) {
        let text = opened.text;
        if channel == channels.own {
            self.receive_own(text);
        } else if let Some(principal) = channel.strip_prefix(&channels.inboxes) {
            if self.is_of_this_epoch(opened.epoch) {
                self.receive_hint(principal, text, wakeups);
            }
        } else if channel == channels.many {
            if self.is_of_this_epoch(opened.epoch) {
                self.receive_many(text, wakeups);
            }
        } else {
            self.handle_control(text);
        }
    }

    /// Whether the numbers of a message mean what they mean here. After a failover some nodes know
    /// the new epoch before others.
    fn is_of_this_epoch(&self, epoch: u64) -> bool {
        let known = self.seal.epoch();
        if epoch > known && self.state.is_news(epoch) {
            self.state.suspect();
        }
        if epoch != known {
            metrics::hints("other_epoch", 1);
        }
        epoch == known
    }

    fn receive_hint(&self, principal: &str, text: &str, wakeups: &mut Wakeups) {
        let Ok(principal) = Uuid::try_parse(principal) else {
            return metrics::hints("unreadable", 1);
        };
        if text.starts_with('~') {
            return self.receive_ephemeral(text, Some(principal));
        }
        let Some(hint) = Hint::decode(text) else {
            return metrics::hints("unreadable", 1);
        };
        // This node's subscriptions got the event before it was published.
        if hint.from != self.node {
            metrics::hints("received", 1);
            self.observe(hint.encoded.as_ref());
            let delivery = Delivery {
                principal,
                seq: hint.seq,
            };
            self.hub
                .deliver(&[delivery], hint.encoded.as_ref(), wakeups);
        }
    }

    fn receive_many(&self, text: &str, wakeups: &mut Wakeups) {
        if text.starts_with('~') {
            return self.receive_ephemeral(text, None);
        }
        let Some(hints) = Hints::decode(text) else {
            return metrics::hints("unreadable", 1);
        };
        if hints.from != self.node {
            metrics::hints("received", 1);
            self.observe(hints.encoded.as_ref());
            self.hub
                .deliver(&hints.deliveries, hints.encoded.as_ref(), wakeups);
        }
    }

    fn observe(&self, encoded: Option<&EncodedEvent>) {
        if let Some(encoded) = encoded {
            (self.backplane.observer)(encoded);
        }
    }

    fn receive_ephemeral(&self, text: &str, to: Option<Uuid>) {
        let Some(envelope) = self.decode(text) else {
            return;
        };
        if envelope.from == self.node {
            return;
        }
        metrics::hints("received", 1);
        // The handler records it before the subscriptions get it. A subscription that asks for the
        // past then misses nothing in between.
        self.backplane.handler.apply_remote(&envelope.event);
        let to = to.map_or(envelope.to, |one| vec![one]);
        self.hub.publish_ephemeral(&to, &envelope.event, None);
    }

    /// Handles a probe of this node, or another node's answer to it.
    fn receive_own(&self, text: &str) {
        if !text.starts_with('~') {
            return self.receive_probe(text);
        }
        if let Some(envelope) = self.decode(text) {
            self.backplane.handler.apply_remote(&envelope.event);
        }
    }

    fn decode(&self, text: &str) -> Option<EphemeralEnvelope> {
        let envelope = EphemeralEnvelope::decode(text, &*self.backplane.handler);
        if envelope.is_none() {
            metrics::hints("unreadable", 1);
        }
        envelope
    }

    fn handle_control(&self, text: &str) {
        match serde_json::from_str(text) {
            Ok(ControlMessage::Invalidate {
                credentials,
                reason,
            }) => {
                // A cut call is made again, so nothing needs to be confirmed first.
                self.hub.note_revoked(&credentials);
                self.announce(&credentials, known_reason(&reason));
            }
            Ok(ControlMessage::WakeWebhooks { from, held }) => {
                let tell = self.state.on_webhooks_woken.get();
                if let Some(tell) = tell.filter(|_| from != self.node) {
                    tell(&mut held.into_iter());
                }
            }
            Err(_) if self.backplane.handler.handle_control(text) => {}
            // A newer node may send messages that this build does not know. The reconciler covers
            // them.
            Err(_) => metrics::hints("unreadable", 1),
        }
    }

    /// Hands on the revocations that concern subscriptions of this node.
    fn announce(&self, credentials: &[Uuid], reason: RevocationReason) {
        let here = self.hub.authorised_by(credentials);
        if !here.is_empty() {
            let announcement = |credential| Announcement { credential, reason };
            self.state.announce(here.into_iter().map(announcement));
        }
    }

    fn receive_probe(&self, text: &str) {
        let now = self.since_start();
        if let Ok(sent) = text.parse().map(Duration::from_micros) {
            metrics::hint_loop(now.saturating_sub(sent));
        }
        *self.last_probe_at.lock() = now;
        if !self.state.healthy() {
            self.state.set_healthy(true);
            self.state.suspect();
        }
    }
}
