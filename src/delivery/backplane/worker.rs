//! The tasks that move hints: publisher, receiver, subscriptions, probe.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::{
    Backplane, Outgoing, State,
    messages::{ControlMessage, EphemeralEnvelope, Hint, Hints},
    pubsub::{Incoming, PubSub},
};
use crate::{
    delivery::hub::{Registry, SubscriptionChange, Wakeups},
    events::EncodedEvent,
    features::streams::table::Key,
    ids::NodeId,
    inbox::Delivery,
    metrics,
    redis::{Redis, keys},
};

/// Messages of one pipeline.
pub(super) const MAX_BATCH_MESSAGES: usize = 512;
/// Channels of one SUBSCRIBE.
const MAX_SUBSCRIBE_CHANNELS: usize = 1024;
/// Between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which the subscriptions are taken for dead.
const MAX_SILENCE: Duration = Duration::from_secs(3);

/// One node's links over a transport.
pub struct PubSubWorker<P> {
    node: NodeId,
    transport: P,
    redis: Redis,
    registry: Registry,
    backplane: Backplane,
    state: Arc<State>,
    started: Instant,
    /// When the last probe came back, as time since the start.
    heard: Mutex<Duration>,
    /// Rung when all subscriptions must be made anew.
    renew: Notify,
}

impl<P: PubSub> PubSubWorker<P> {
    /// Spawns the tasks; they end with `stop`.
    pub fn spawn(
        backplane: &Backplane,
        transport: P,
        outgoing: Outgoing,
        interest: mpsc::UnboundedReceiver<SubscriptionChange>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let links = Arc::new(PubSubWorker {
            node: backplane.node,
            transport,
            redis: backplane.redis.clone(),
            registry: backplane.registry.clone(),
            backplane: backplane.clone(),
            state: backplane.state(),
            started: Instant::now(),
            heard: Mutex::default(),
            renew: Notify::new(),
        });
        let until = |stop: &CancellationToken| stop.clone().cancelled_owned();
        tasks.spawn(with(until(stop), links.clone().publish(outgoing)));
        tasks.spawn(with(until(stop), links.clone().receive()));
        tasks.spawn(with(until(stop), links.clone().subscribe(interest)));
        tasks.spawn(with(until(stop), links.clone().watch_link()));
        tasks.spawn(with(until(stop), links.probe()));
    }

    /// Sends whatever waits as one pipeline: awaiting each message would cost a round trip per message.
    async fn publish(self: Arc<Self>, mut outgoing: Outgoing) {
        let mut batch = Vec::with_capacity(MAX_BATCH_MESSAGES);
        while outgoing.next(&mut batch).await {
            // In pieces that Redis takes well within a call's deadline.
            for piece in pieces(std::mem::take(&mut batch)) {
                let n = piece.len() as u64;
                let sent = self.transport.publish(piece).await;
                metrics::hints(if sent { "published" } else { "lost" }, n);
            }
        }
    }

    async fn receive(self: Arc<Self>) {
        let mut inbound = self.transport.inbound();
        let inboxes = self.redis.key("p:");
        let own = self.redis.key(keys::node_channel(self.node));
        let many = self.redis.key(keys::many_channel());
        let mut bells = Wakeups::default();
        let mut next = P::next(&mut inbound).await;
        while let Some(incoming) = next {
            match incoming {
                Incoming::Lagged(n) => {
                    metrics::hints("lagged", n);
                    self.state.suspect();
                }
                Incoming::Message { channel, text } => {
                    if let Some(principal) = channel.strip_prefix(&inboxes) {
                        self.hear_hint(principal, &text, &mut bells);
                    } else if channel == many {
                        self.hear_many(&text, &mut bells);
                    } else if channel == own {
                        self.hear_own(&text);
                    } else {
                        self.handle_control(&text);
                    }
                }
            }
            // What has come together is told together.
            let soon = P::next(&mut inbound).now_or_never();
            if soon.is_none() || bells.are_many() {
                bells.wake();
            }
            next = match soon {
                Some(next) => next,
                None => P::next(&mut inbound).await,
            };
        }
    }

    fn hear_hint(&self, principal: &str, text: &str, bells: &mut Wakeups) {
        let Ok(principal) = Uuid::try_parse(principal) else {
            return metrics::hints("unreadable", 1);
        };
        if text.starts_with('~') {
            return self.hear_whisper(text, Some(principal));
        }
        let Some(hint) = Hint::decode(text) else {
            return metrics::hints("unreadable", 1);
        };
        // Our own listeners were told before we published.
        if hint.from != self.node {
            metrics::hints("received", 1);
            self.note(hint.encoded.as_ref());
            let delivery = Delivery {
                principal,
                seq: hint.seq,
            };
            self.registry
                .deliver(&[delivery], hint.encoded.as_ref(), bells);
        }
    }

    fn hear_many(&self, text: &str, bells: &mut Wakeups) {
        if text.starts_with('~') {
            return self.hear_whisper(text, None);
        }
        let Some(hints) = Hints::decode(text) else {
            return metrics::hints("unreadable", 1);
        };
        if hints.from != self.node {
            metrics::hints("received", 1);
            self.note(hints.encoded.as_ref());
            self.registry
                .deliver(&hints.deliveries, hints.encoded.as_ref(), bells);
        }
    }

    fn note(&self, encoded: Option<&EncodedEvent>) {
        if let Some(encoded) = encoded {
            self.backplane.audience.note(encoded);
        }
    }

    fn hear_whisper(&self, text: &str, to: Option<Uuid>) {
        let Some(EphemeralEnvelope {
            from,
            to: many,
            ephemeral,
        }) = EphemeralEnvelope::decode(text)
        else {
            return metrics::hints("unreadable", 1);
        };
        if from == self.node {
            return;
        }
        metrics::hints("received", 1);
        // Kept before it is told, so that whoever asks for what came before misses nothing in between.
        self.backplane.streams.apply_remote(&ephemeral);
        match to {
            Some(one) => self.registry.publish_ephemeral(&[one], &ephemeral, None),
            None => self.registry.publish_ephemeral(&many, &ephemeral, None),
        }
    }

    fn hear_own(&self, text: &str) {
        if !text.starts_with('~') {
            return self.hear_probe(text);
        }
        match EphemeralEnvelope::decode(text) {
            Some(told) => self.backplane.streams.apply_remote(&told.ephemeral),
            None => metrics::hints("unreadable", 1),
        }
    }

    fn handle_control(&self, text: &str) {
        match serde_json::from_str(text) {
            Ok(ControlMessage::Invalidate {
                credentials,
                reason,
            }) => {
                self.registry.revoke(&credentials, known_reason(&reason));
            }
            Ok(ControlMessage::StreamMoved { to, agent, stream }) if to != self.node => {
                self.backplane.streams.forget(agent, &stream);
            }
            Ok(ControlMessage::StreamMoved { .. }) => {}
            Ok(ControlMessage::StreamWanted(wanted)) if wanted.by != self.node => {
                self.backplane.request(ControlMessage::StreamWanted(wanted));
            }
            Ok(ControlMessage::StreamEnded {
                by,
                agent,
                stream,
                conversation,
                text,
                told,
            }) if by != self.node => {
                let key = Key {
                    agent,
                    stream: stream.clone(),
                };
                let open = self.backplane.streams.open(&key);
                if open.is_some_and(|home| home.conversation == conversation)
                    && self.backplane.streams.finish(&key, &text.as_str().into())
                    && !told
                {
                    self.backplane.request(ControlMessage::StreamEnded {
                        by,
                        agent,
                        stream,
                        conversation,
                        text,
                        told,
                    });
                }
            }
            Ok(ControlMessage::StreamWanted(_) | ControlMessage::StreamEnded { .. }) => {}
            // A newer node may know orders that we do not; the sweep covers what they are about.
            Err(_) => metrics::hints("unreadable", 1),
        }
    }

    /// Keeps the subscriptions equal to what the registry wants.
    async fn subscribe(self: Arc<Self>, mut interest: mpsc::UnboundedReceiver<SubscriptionChange>) {
        let mut held: HashSet<Uuid> = HashSet::new();
        let mut changes = Vec::new();
        self.renew.notify_one();
        loop {
            tokio::select! {
                biased;
                () = self.renew.notified() => {
                    while !self.renew_all(&mut held).await {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
                n = interest.recv_many(&mut changes, MAX_SUBSCRIBE_CHANNELS) => {
                    if n == 0 {
                        return;
                    }
                    self.follow(&mut held, changes.drain(..).map(|SubscriptionChange(principal)| principal)).await;
                }
            }
        }
    }

    async fn follow(&self, held: &mut HashSet<Uuid>, changed: impl Iterator<Item = Uuid>) {
        let changed: HashSet<Uuid> = changed.collect();
        let (wanted, unwanted): (Vec<Uuid>, Vec<Uuid>) = changed
            .into_iter()
            .partition(|one| self.registry.listens(*one));
        let new: Vec<Uuid> = wanted.into_iter().filter(|one| held.insert(*one)).collect();
        let old: Vec<Uuid> = unwanted
            .into_iter()
            .filter(|one| held.remove(one))
            .collect();
        if !new.is_empty() {
            if !self.transport.subscribe(self.channels(&new)).await {
                // Unknown which of them took: make all anew.
                self.renew.notify_one();
            }
            self.state.subscribed(&new);
        }
        if !old.is_empty() {
            // A channel too many only costs messages that nobody here hears.
            self.transport.unsubscribe(self.channels(&old)).await;
        }
    }

    fn channels(&self, principals: &[Uuid]) -> Vec<String> {
        principals
            .iter()
            .map(|one| self.redis.key(keys::inbox_channel(*one)))
            .collect()
    }

    async fn renew_all(&self, held: &mut HashSet<Uuid>) -> bool {
        let wanted: HashSet<Uuid> = self
            .registry
            .all()
            .iter()
            .map(|subscription| subscription.principal)
            .collect();
        let gone: Vec<Uuid> = held.difference(&wanted).copied().collect();
        *held = wanted;
        if !gone.is_empty() {
            self.transport.unsubscribe(self.channels(&gone)).await;
        }
        let standing = [
            keys::control_channel(),
            keys::many_channel(),
            keys::node_channel(self.node),
        ];
        if !self
            .transport
            .subscribe(standing.map(|name| self.redis.key(name)).into())
            .await
        {
            return false;
        }
        let principals: Vec<Uuid> = held.iter().copied().collect();
        for chunk in principals.chunks(MAX_SUBSCRIBE_CHANNELS) {
            if !self.transport.subscribe(self.channels(chunk)).await {
                return false;
            }
        }
        self.state.suspect();
        true
    }

    /// A new link has no subscriptions.
    async fn watch_link(self: Arc<Self>) {
        loop {
            self.transport.reconnected().await;
            metrics::resubscribed("reconnect");
            self.renew.notify_one();
        }
    }

    fn since_start(&self) -> Duration {
        self.started.elapsed()
    }

    fn hear_probe(&self, text: &str) {
        let now = self.since_start();
        if let Ok(sent) = text.parse().map(Duration::from_micros) {
            metrics::hint_loop(now.saturating_sub(sent));
        }
        *self.heard.lock() = now;
        if !self.state.healthy() {
            self.state.set_healthy(true);
            self.state.suspect();
        }
    }

    /// Hints may be lost from now on, and some may be already.
    fn doubt(&self, why: &'static str) {
        if self.state.healthy() {
            tracing::warn!("{why}");
            self.state.set_healthy(false);
            self.state.suspect();
        }
    }

    /// A link can look alive and deliver nothing; only a message that came back proves it.
    async fn probe(self: Arc<Self>) {
        let own = self.redis.key(keys::node_channel(self.node));
        let mut renewed = Duration::ZERO;
        loop {
            let now = self.since_start();
            let sent = self
                .transport
                .publish(vec![(own.clone(), now.as_micros().to_string())])
                .await;
            if !sent {
                // Nor is anything else: no need to wait for what cannot come back.
                self.doubt("the backplane cannot be reached; sweeping faster");
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
            let heard = *self.heard.lock();
            let now = self.since_start();
            if now.saturating_sub(heard) < MAX_SILENCE {
                continue;
            }
            self.doubt("the backplane is silent; sweeping faster");
            if now.saturating_sub(renewed) >= MAX_SILENCE {
                renewed = now;
                metrics::resubscribed("silence");
                self.transport.reconnect().await;
                self.renew.notify_one();
            }
        }
    }
}

/// Bytes of one pipeline.
const MAX_PIPELINE_BYTES: usize = 512 * 1024;

fn pieces(batch: Vec<(String, String)>) -> Vec<Vec<(String, String)>> {
    let mut pieces = vec![Vec::new()];
    let mut bytes = 0;
    for message in batch {
        bytes += message.1.len();
        if bytes > MAX_PIPELINE_BYTES {
            pieces.push(Vec::new());
            bytes = message.1.len();
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(message);
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// Reasons are known words; what another node says is mapped onto them, never repeated as it came.
pub fn known_reason(reason: &str) -> &'static str {
    const KNOWN_REASONS: &[&str] = &[
        "device_revoked",
        "logout",
        "password_reset",
        "refresh_reuse",
        "token_revoked",
        "token_regenerated",
        "account_deleted",
    ];
    KNOWN_REASONS
        .iter()
        .find(|known| **known == reason)
        .copied()
        .unwrap_or("token_revoked")
}

/// What a socket is told when the sweep finds its credential dead.
pub fn reason_of(session: bool, recorded: &str) -> &'static str {
    if session && recorded.is_empty() {
        "logout"
    } else {
        known_reason(recorded)
    }
}

async fn with(stop: impl Future<Output = ()>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = stop => {}
        () = work => {}
    }
}
