//! When agent tokens were last used. A request only queues a note. A task writes the notes, at most
//! once a minute per token and node.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use moka::sync::Cache;
use tokio::sync::{Mutex, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{error::Result, ids::TokenId, supervisor};

/// Precision of the recorded time.
const USE_GRANULARITY: Duration = Duration::from_secs(60);
/// Pause between two writes. `MAX_BATCH_TOKENS` bounds a write.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
const MAX_BATCH_TOKENS: usize = 1024;
/// Notes that may wait. More are dropped, and the next use makes them again.
const QUEUE_CAPACITY: usize = 8_192;

/// Writes that these tokens were used now.
pub type WriteUses = Arc<dyn Fn(Vec<TokenId>) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// Queues notes; clones share the queue.
#[derive(Clone)]
pub struct TokenUse {
    recent: Cache<TokenId, ()>,
    notes: mpsc::Sender<TokenId>,
}

impl TokenUse {
    /// Spawns the writer; it ends with `stop`.
    pub fn start(write: WriteUses, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        let (notes, waiting) = mpsc::channel(QUEUE_CAPACITY);
        // The queue outlives a writer that panics and starts again.
        let waiting = Arc::new(Mutex::new(waiting));
        supervisor::spawn_until(tasks, stop, "auth.touch_tokens", move || {
            let (write, waiting) = (write.clone(), waiting.clone());
            async move { write_all(&write, &mut *waiting.lock().await).await }
        });
        TokenUse {
            recent: Cache::builder()
                .max_capacity(100_000)
                .time_to_live(USE_GRANULARITY)
                .build(),
            notes,
        }
    }

    /// Notes that the token was used now.
    pub fn note(&self, token: TokenId) {
        if !self.recent.contains_key(&token) && self.notes.try_send(token).is_ok() {
            self.recent.insert(token, ());
        }
    }
}

async fn write_all(write: &WriteUses, waiting: &mut mpsc::Receiver<TokenId>) {
    let mut tokens = Vec::with_capacity(MAX_BATCH_TOKENS);
    while waiting.recv_many(&mut tokens, MAX_BATCH_TOKENS).await > 0 {
        if let Err(error) = write(tokens.clone()).await {
            error.log_in(
                "auth.touch_tokens",
                "the times of last use stay as they were",
            );
        }
        tokens.clear();
        tokio::time::sleep(FLUSH_INTERVAL).await;
    }
}
