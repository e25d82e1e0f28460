//! The task that handles messages of other nodes.

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::revocation::RevocationReason;
use futures_util::FutureExt;

use super::{
    Announcement,
    messages::{ControlMessage, Hint, TAIL, known_reason},
    pubsub::{Incoming, PubSub},
    seal::{OpenedMessage, Opener, Refusal},
    worker::PubSubWorker,
};
use crate::{
    delivery::{ephemeral::EphemeralEnvelope, hub::Wakeups},
    events::EncodedEvent,
    ids::CredentialId,
    metrics,
    redis::keys,
    telemetry::trace,
};

impl<P: PubSub> PubSubWorker<P> {
    /// Handles arrivals until the transport ends.
    pub(super) async fn receive(self: Arc<Self>) {
        let mut inbound = self.transport.inbound();
        let own = self.redis.key(keys::node_channel(self.node));
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
                    Ok(opened) if channel == own => self.receive_own(&opened, &mut wakeups),
                    Ok(opened) => self.handle_control(opened.text),
                    Err(Refusal::Unsealed) => {
                        metrics::hints("unsealed", 1);
                        // A node with another secret has something to say, or an intruder has.
                        if channel == own {
                            self.state.demand_round();
                        }
                    }
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

    /// Handles a message to this node: hint, ephemeral event, wake-up, tail, or its own probe.
    fn receive_own(&self, opened: &OpenedMessage<'_>, wakeups: &mut Wakeups) {
        if opened.missed > 0 {
            metrics::hints("missed", opened.missed);
            self.state.demand_round();
        }
        match opened.text.as_bytes().first() {
            Some(b'!' | b'~') if !self.is_of_this_epoch(opened.epoch) => {}
            Some(b'!') => self.receive_hint(opened.text, wakeups),
            Some(b'~') => self.receive_ephemeral(opened.text),
            Some(b'{') => self.handle_control(opened.text),
            _ if opened.text == TAIL => {}
            _ => self.receive_probe(opened.text),
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
            self.state.demand_round();
        }
        epoch == known
    }

    fn receive_hint(&self, text: &str, wakeups: &mut Wakeups) {
        let Some(hint) = Hint::decode(text) else {
            metrics::hints("unreadable", 1);
            return self.state.demand_round();
        };
        // This node's subscriptions got the event before it was published.
        if hint.from != self.node {
            metrics::hints("received", 1);
            let _span = trace::of_follower("hint", "deliver", "consumer", hint.trace).entered();
            self.observe(hint.encoded.as_ref());
            self.hub
                .deliver(hint.heads.iter().copied(), hint.encoded.as_ref(), wakeups);
        }
    }

    fn observe(&self, encoded: Option<&EncodedEvent>) {
        if let Some(encoded) = encoded {
            (self.backplane.observer)(encoded);
        }
    }

    fn receive_ephemeral(&self, text: &str) {
        let Some(envelope) = EphemeralEnvelope::decode(text, &*self.backplane.handler) else {
            return metrics::hints("unreadable", 1);
        };
        if envelope.from == self.node {
            return;
        }
        metrics::hints("received", 1);
        self.backplane.handler.apply_remote(&envelope.event);
        self.hub
            .publish_ephemeral(&envelope.to, &envelope.event, None);
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
            // A newer node may send messages that this build does not know. The reconciler covers
            // them.
            Err(_) => metrics::hints("unreadable", 1),
        }
    }

    /// Hands on the revocations that concern subscriptions of this node.
    fn announce(&self, credentials: &[CredentialId], reason: RevocationReason) {
        let here = self.hub.authorised_by(credentials);
        if !here.is_empty() {
            let announcement = |credential| Announcement { credential, reason };
            self.state
                .announced
                .extend(here.into_iter().map(announcement));
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
