//! The task that handles messages of other nodes.

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::revocation::RevocationReason;
use futures_util::FutureExt;

use super::{
    RevocationNotice,
    message_mac::{Refusal, VerifiedMessage, Verifier},
    messages::{ControlMessage, Hint, LAST_SEQUENCE, known_reason},
    pubsub::{Incoming, PubSub},
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
        let mut verifier = Verifier::new(&self.signer);
        let mut wakeups = Wakeups::default();
        let mut next = P::next(&mut inbound).await;
        while let Some(incoming) = next {
            match incoming {
                Incoming::Lagged(n) => {
                    metrics::hints("lagged", n);
                    self.state.request_log_read();
                }
                Incoming::Message { channel, text } => match verifier.verify(&channel, &text) {
                    Ok(message) if channel == own => self.receive_own(&message, &mut wakeups),
                    Ok(message) => self.handle_control(message.text),
                    Err(Refusal::Unsigned) => {
                        metrics::hints("unsealed", 1);
                        // A node with another secret has something to say, or an intruder has.
                        if channel == own {
                            self.state.request_full_scan();
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
    fn receive_own(&self, message: &VerifiedMessage<'_>, wakeups: &mut Wakeups) {
        if message.missed > 0 {
            metrics::hints("missed", message.missed);
            self.state.request_full_scan();
        }
        match message.text.as_bytes().first() {
            Some(b'!' | b'~') if !self.is_of_this_epoch(message.epoch) => {}
            Some(b'!') => self.receive_hint(message.text, wakeups),
            Some(b'~') => self.receive_ephemeral(message.text),
            Some(b'{') => self.handle_control(message.text),
            _ if message.text == LAST_SEQUENCE => {}
            _ => self.receive_probe(message.text),
        }
    }

    /// Whether the numbers of a message mean what they mean here. After a failover some nodes know
    /// the new epoch before others.
    fn is_of_this_epoch(&self, epoch: u64) -> bool {
        let known = self.signer.epoch();
        if epoch > known && self.state.is_news(epoch) {
            self.state.request_log_read();
        }
        if epoch != known {
            metrics::hints("other_epoch", 1);
            self.state.request_full_scan();
        }
        epoch == known
    }

    fn receive_hint(&self, text: &str, wakeups: &mut Wakeups) {
        let Some(hint) = Hint::decode(text) else {
            metrics::hints("unreadable", 1);
            return self.state.request_full_scan();
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
                self.queue_revocations(&credentials, known_reason(&reason));
            }
            Ok(ControlMessage::WakeWebhooks { from, held }) => {
                let observe = self.state.on_webhooks_woken.get();
                if let Some(observe) = observe.filter(|_| from != self.node) {
                    observe(&mut held.into_iter());
                }
            }
            // A newer node may send messages that this build does not know. The reconciler covers
            // them.
            Err(_) => metrics::hints("unreadable", 1),
        }
    }

    /// Hands on the revocations that concern subscriptions of this node.
    fn queue_revocations(&self, credentials: &[CredentialId], reason: RevocationReason) {
        let here = self.hub.authorised_by(credentials);
        if !here.is_empty() {
            let notice = |credential| RevocationNotice { credential, reason };
            self.state
                .revocation_notices
                .extend(here.into_iter().map(notice));
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
            self.state.request_log_read();
        }
    }
}
