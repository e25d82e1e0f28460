//! The dispatcher: claims wakes that are due and pushes them. A worker that dies loses its claims
//! after a lease, and another one pushes then.

use std::{sync::Arc, time::Duration};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use blindpipe_protocol::push::PushContent;
use chrono::TimeDelta;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use super::{
    EndpointSeal, ServerKeys, encryption,
    rules::{self, LIFE, URGENT_LIFE, Verdict},
    seal::Endpoint,
    store::wakes::{self, Claim},
};
use crate::{
    auth::{key_ring::MacKeyRing, server_secret::ServerSecret},
    clock::Clock,
    db::Db,
    egress::{Egress, EgressError},
    error::{Code, Error, Result},
    ids::{ConversationId, Principal},
    limits::slots::{ConnectionKind, Slots},
    metrics,
    random::Random,
    supervisor,
};

/// Interval at which a worker looks for wakes that no hint announced: the ends of windows, retries,
/// and those of dead workers.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Most wakes of a claim.
const MAX_BATCH_WAKES: usize = 64;
/// The longest wait for a place among the calls to a push service.
const PLACE_WAIT: Duration = Duration::from_secs(4);
/// Wait before a wake that found no place is looked at again.
const BUSY_WAIT: TimeDelta = TimeDelta::seconds(1);
/// Bytes of a topic, which is 32 characters of base64url.
const TOPIC_BYTES: usize = 24;
/// The failure of a subscription whose keys have left the ring.
const UNREADABLE: &str = "secret_unreadable";

const TTL: HeaderName = HeaderName::from_static("ttl");
const URGENCY: HeaderName = HeaderName::from_static("urgency");
const TOPIC: HeaderName = HeaderName::from_static("topic");

/// The parts of the node that a dispatcher needs.
pub struct Parts {
    /// Connections whose commits do not wait for the disk. A push that a crash of Postgres forgets
    /// is made again.
    pub db: Db,
    pub slots: Slots,
    pub egress: Egress,
    pub seal: EndpointSeal,
    pub keys: ServerKeys,
    pub topics: Topics,
    pub clock: Clock,
    pub random: Random,
    /// The address of this server, which tells a push service whom to ask.
    pub contact: String,
    /// Calls under way at once.
    pub max_calls: usize,
    /// Gets the calls. A drain waits for them.
    pub calls: TaskTracker,
    /// Cancelled when the node takes no new work.
    pub draining: CancellationToken,
}

/// Names that a push service replaces earlier pushes by. They say nothing to it.
pub struct Topics(MacKeyRing);

impl Topics {
    /// Derives the key from the server secret.
    pub fn new(secret: &ServerSecret) -> Self {
        Topics(secret.derive("push topic"))
    }

    /// The topic of a device and a conversation.
    fn of(&self, claim: &Claim) -> String {
        let user = claim.user.0;
        let device = claim.device.as_deref().unwrap_or_default();
        let conversation = claim.conversation.unwrap_or(ConversationId::NIL).0;
        let parts: &[&[u8]] = &[user.as_bytes(), conversation.as_bytes(), device.as_bytes()];
        BASE64.encode(&self.0.sign(parts)[..TOPIC_BYTES])
    }
}

/// Pushes on this node.
#[derive(Clone)]
pub struct Dispatcher {
    parts: Arc<Parts>,
    places: Arc<Semaphore>,
    wake_due: Arc<Notify>,
}

impl Dispatcher {
    /// Spawns a worker; it ends with the node.
    pub fn start(parts: Parts, wake_due: Arc<Notify>, tasks: &TaskTracker) {
        let dispatcher = Dispatcher {
            places: Arc::new(Semaphore::new(parts.max_calls)),
            parts: Arc::new(parts),
            wake_due,
        };
        supervisor::spawn(tasks, "push.claim", move || dispatcher.clone().run());
    }

    /// Claims due wakes until the node takes no new work.
    async fn run(self) {
        loop {
            let claimed = match self.claim_some().await {
                Ok(claimed) => claimed,
                Err(error) => {
                    error.log_in("push.claim", "the dispatcher claims again at the next tick");
                    0
                }
            };
            if claimed > 0 {
                continue;
            }
            tokio::select! {
                () = self.wake_due.notified() => {}
                () = tokio::time::sleep(CLAIM_INTERVAL) => {}
                () = self.parts.draining.cancelled() => return,
            }
        }
    }

    /// Claims as many wakes as there is room for; returns their number.
    async fn claim_some(&self) -> Result<usize> {
        let room = self.places.available_permits().min(MAX_BATCH_WAKES);
        if room == 0 || self.parts.draining.is_cancelled() {
            return Ok(0);
        }
        let limit = i64::try_from(room).unwrap_or(i64::MAX);
        let claims = wakes::claim(&self.parts.db, limit).await?;
        let claimed = claims.len();
        for claim in claims {
            // The run alone takes places, so there is one for each claim.
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                break;
            };
            self.begin(claim, place);
        }
        Ok(claimed)
    }

    fn begin(&self, claim: Claim, place: OwnedSemaphorePermit) {
        let (parts, wake_due) = (self.parts.clone(), self.wake_due.clone());
        supervisor::spawn_once(&self.parts.calls, "push.call", async move {
            let handled = Box::pin(parts.handle(&claim)).await;
            if let Err(error) = handled {
                error.log_in("push.call", "another worker pushes after the lease");
            }
            drop(place);
            wake_due.notify_one();
        });
    }
}

impl Parts {
    /// Pushes a wake, or finds that it needs no push, and records it.
    async fn handle(&self, claim: &Claim) -> Result<()> {
        let Some(device) = &claim.device else {
            return wakes::end(&self.db, claim).await;
        };
        if claim.acked >= claim.seq || claim.is_expired {
            metrics::push("needless");
            return wakes::drop_wake(&self.db, claim).await;
        }
        let is_online = self.is_online(claim, device).await;
        if let Some(at) = rules::parked_until(is_online, claim.waits_since, claim.now) {
            return wakes::park(&self.db, claim, at, true).await;
        }
        let Some(endpoint) = self.seal.open(claim.session, &claim.sealed_endpoint) else {
            return self.give_up(claim, UNREADABLE).await;
        };
        let Some(headers) = self.headers(claim, &endpoint)? else {
            return self.give_up(claim, UNREADABLE).await;
        };
        let body = self.body(claim, &endpoint)?;
        let holder = Some(claim.user.0);
        let reserved = self
            .egress
            .reserve(endpoint.url.expose(), holder, PLACE_WAIT);
        let outcome = match reserved.await {
            Ok(reserved) => reserved.post(headers, body.into()).await,
            Err(error) => Err(error),
        };
        let outcome = outcome.map(|reply| (reply.status.as_u16(), reply.retry_after));
        self.settle(claim, outcome).await
    }

    /// Whether a socket of the device is online on any node.
    async fn is_online(&self, claim: &Claim, device: &str) -> bool {
        let connections = self
            .slots
            .connections(&[Principal::User(claim.user)])
            .await
            .into_iter()
            .flatten();
        let before = claim.renamed_from.as_deref();
        let mut own = connections.filter(|one| {
            one.kind == ConnectionKind::Websocket
                && (one.device_id == device || before == Some(&one.device_id))
        });
        own.next().is_some()
    }

    /// The headers of a push. None if the server's key has left the ring.
    fn headers(&self, claim: &Claim, endpoint: &Endpoint) -> Result<Option<HeaderMap>> {
        // An address that is no URL any more is refused where it is called.
        let url = Url::parse(endpoint.url.expose()).ok();
        let origin = url.map_or_else(String::new, |url| url.origin().ascii_serialization());
        let now = self.clock.now();
        let Some(proof) = self
            .keys
            .proof(claim.server_key, &origin, &self.contact, now)?
        else {
            return Ok(None);
        };
        let mut proof = HeaderValue::try_from(proof)
            .map_err(|error| Error::internal(Code::InternalError, error))?;
        proof.set_sensitive(true);
        let life = if claim.is_urgent { URGENT_LIFE } else { LIFE };
        let urgency = if claim.is_urgent { "high" } else { "normal" };
        let topic = HeaderValue::try_from(self.topics.of(claim))
            .map_err(|error| Error::internal(Code::InternalError, error))?;
        Ok(Some(HeaderMap::from_iter([
            (header::AUTHORIZATION, proof),
            (
                header::CONTENT_ENCODING,
                HeaderValue::from_static("aes128gcm"),
            ),
            (
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/octet-stream"),
            ),
            (TTL, HeaderValue::from(life.as_secs())),
            (URGENCY, HeaderValue::from_static(urgency)),
            (TOPIC, topic),
        ])))
    }

    /// The encrypted body of a push.
    fn body(&self, claim: &Claim, endpoint: &Endpoint) -> Result<Vec<u8>> {
        let content = PushContent {
            event: claim.event.clone(),
            event_id: claim.event_id,
            conversation_id: claim.conversation,
            id: claim.subject.clone(),
            count: claim.head - claim.acked,
        };
        let content = serde_json::to_vec(&content)
            .map_err(|error| Error::internal(Code::InternalError, error))?;
        let Endpoint {
            device_key, auth, ..
        } = endpoint;
        encryption::encrypt(device_key, auth, self.random.bytes(), &content)
            .map_err(|error| Error::internal(Code::InternalError, error))
    }

    /// Records the outcome of a call.
    async fn settle(
        &self,
        claim: &Claim,
        outcome: Result<(u16, Option<Duration>), EgressError>,
    ) -> Result<()> {
        let word = match &outcome {
            Ok((429, _)) => "too_many_requests",
            Ok(_) => "unexpected_status",
            Err(error) => error.word(),
        };
        match rules::judge(outcome, claim.attempts + 1, self.random.fraction()) {
            Verdict::Sent => {
                metrics::push("sent");
                wakes::set_error(&self.db, claim, None).await?;
                wakes::sent(&self.db, claim).await
            }
            Verdict::End => {
                metrics::push("ended");
                wakes::end(&self.db, claim).await
            }
            Verdict::Busy => wakes::park(&self.db, claim, claim.now + BUSY_WAIT, false).await,
            Verdict::Retry(wait) => {
                metrics::push("failed");
                wakes::set_error(&self.db, claim, Some(word)).await?;
                wakes::retry(&self.db, claim, wait).await
            }
            Verdict::GiveUp => self.give_up(claim, word).await,
        }
    }

    async fn give_up(&self, claim: &Claim, word: &str) -> Result<()> {
        metrics::push("given_up");
        wakes::set_error(&self.db, claim, Some(word)).await?;
        wakes::drop_wake(&self.db, claim).await
    }
}
