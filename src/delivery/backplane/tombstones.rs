//! The revocations of the last day, kept in Redis in case Postgres loses its tail. A fail-over to a
//! standby that was behind would undo recent revocations. Each node revokes them again when it
//! starts and when the epoch changes. A credential that is revoked already stays as it is, so the
//! number of nodes does not matter.
//!
//! A tombstone names a credential and the reason, and carries a MAC under a key derived from the
//! server's secret. So a writer to Redis cannot revoke anything.
//!
//! Why: ADR 6.

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::revocation::RevocationReason;
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::messages::known_reason;
use crate::{
    auth::key_ring::MacKeyRing,
    auth::server_secret::ServerSecret,
    error::Result,
    ids::CredentialId,
    redis::{Away, Redis, Script, keys},
    supervisor,
};

/// Life of a tombstone.
const TOMBSTONE_TTL: Duration = Duration::from_secs(86_400);
/// Tombstones that may wait for Redis. More are left out, and only a lost tail would show it.
const QUEUE_CAPACITY: usize = 16_384;
/// Most tombstones in a call to Redis or a statement.
const MAX_BATCH_TOMBSTONES: usize = 500;
/// Pause between two tries while Redis is away.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Revokes those of the credentials that live, each for its reason.
pub type MarkRevoked = Arc<
    dyn Fn(Vec<CredentialId>, Vec<RevocationReason>) -> BoxFuture<'static, Result<()>>
        + Send
        + Sync,
>;

/// The tombstones of all nodes; clones share the queue.
#[derive(Clone)]
pub struct Tombstones {
    redis: Redis,
    keys: MacKeyRing,
    script: Arc<Script>,
    queue: mpsc::Sender<String>,
}

impl Tombstones {
    /// Spawns the task that writes the tombstones; it ends with `stop`.
    pub fn start(
        redis: Redis,
        secret: &ServerSecret,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_CAPACITY);
        let keys = secret.derive("seal of a revocation's tombstone");
        let script = Arc::new(Script::new(include_str!("tombstones.lua")));
        let tombstones = Tombstones {
            redis,
            keys,
            script,
            queue,
        };
        // The queue outlives a task that panics and starts again.
        let (setter, waiting) = (tombstones.clone(), Arc::new(Mutex::new(waiting)));
        supervisor::spawn_until(tasks, stop, "backplane.tombstones", move || {
            let (setter, waiting) = (setter.clone(), waiting.clone());
            async move { setter.set(&mut *waiting.lock().await).await }
        });
        tombstones
    }

    /// For credentials whose end has been committed.
    pub fn raise(&self, credentials: &[CredentialId], reason: RevocationReason) {
        for credential in credentials {
            self.queue
                .try_send(self.entry(*credential, reason.as_str()))
                .ok();
        }
    }

    async fn set(&self, waiting: &mut mpsc::Receiver<String>) {
        let mut batch = Vec::with_capacity(MAX_BATCH_TOMBSTONES);
        while waiting.recv_many(&mut batch, MAX_BATCH_TOMBSTONES).await > 0 {
            let mut args = vec![TOMBSTONE_TTL.as_millis().to_string()];
            args.append(&mut batch);
            while self.eval(args.clone()).await.is_err() {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }

    async fn eval(&self, args: Vec<String>) -> Result<i64, Away> {
        self.redis
            .eval(&self.script, &[self.redis.key(keys::tombstones())], args)
            .await
    }

    /// Repeats the revocation of every tombstone, in pieces; false if Redis is away. A lost tail is
    /// short, so the newest come first.
    pub async fn replay(&self, mark_revoked: &MarkRevoked) -> Result<bool> {
        for page in 0.. {
            let Ok(entries) = self.page(page * MAX_BATCH_TOMBSTONES as i64).await else {
                return Ok(false);
            };
            let (ids, reasons): (Vec<CredentialId>, Vec<RevocationReason>) =
                entries.iter().filter_map(|entry| self.read(entry)).unzip();
            if !ids.is_empty() {
                mark_revoked(ids, reasons).await?;
            }
            if entries.len() < MAX_BATCH_TOMBSTONES {
                break;
            }
        }
        Ok(true)
    }

    async fn page(&self, from: i64) -> Result<Vec<String>, Away> {
        use fred::interfaces::SortedSetsInterface;
        let key = self.redis.key(keys::tombstones());
        let to = from + MAX_BATCH_TOMBSTONES as i64 - 1;
        self.redis
            .run(async |client| client.zrevrange(key, from, to, false).await)
            .await
    }

    fn entry(&self, credential: CredentialId, reason: &str) -> String {
        let mac = self.keys.sign(&[credential.as_bytes(), reason.as_bytes()]);
        format!(
            "{} {reason} {}",
            credential.0.simple(),
            base16ct::lower::encode_string(&mac)
        )
    }

    fn read(&self, entry: &str) -> Option<(CredentialId, RevocationReason)> {
        let mut parts = entry.split(' ');
        let credential = CredentialId(parts.next()?.parse().ok()?);
        let (reason, mac) = (
            parts.next()?,
            base16ct::lower::decode_vec(parts.next()?).ok()?,
        );
        self.keys
            .verify(&[credential.as_bytes(), reason.as_bytes()], &mac)
            .then(|| (credential, known_reason(reason)))
    }
}
