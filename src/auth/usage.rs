//! When agent tokens were last used. A request only queues a note. A task writes the notes, at most
//! once a minute per token and node.

use std::{sync::Arc, time::Duration};

use moka::sync::Cache;
use tokio::sync::{Mutex, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{db::Db, error::Result, ids::TokenId, supervisor};

/// Precision of the recorded time.
const USE_GRANULARITY: Duration = Duration::from_secs(60);
/// Pause between two writes. `MAX_BATCH_TOKENS` bounds a write.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
const MAX_BATCH_TOKENS: usize = 1024;
/// Notes that may wait. More are dropped, and the next use makes them again.
const QUEUE_CAPACITY: usize = 8_192;

/// Queues notes; clones share the queue.
#[derive(Clone)]
pub struct TokenUse {
    recent: Cache<TokenId, ()>,
    notes: mpsc::Sender<TokenId>,
}

impl TokenUse {
    /// Spawns the writer; it ends with `stop`.
    pub fn start(db: Db, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        let (notes, waiting) = mpsc::channel(QUEUE_CAPACITY);
        // The queue outlives a writer that panics and starts again.
        let waiting = Arc::new(Mutex::new(waiting));
        supervisor::spawn_until(tasks, stop, "auth.touch_tokens", move || {
            let (db, waiting) = (db.clone(), waiting.clone());
            async move { write(&db, &mut *waiting.lock().await).await }
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

async fn write(db: &Db, waiting: &mut mpsc::Receiver<TokenId>) {
    let mut tokens = Vec::with_capacity(MAX_BATCH_TOKENS);
    while waiting.recv_many(&mut tokens, MAX_BATCH_TOKENS).await > 0 {
        if let Err(error) = touch(db, &tokens).await {
            error.log_in(
                "auth.touch_tokens",
                "the times of last use stay as they were",
            );
        }
        tokens.clear();
        tokio::time::sleep(FLUSH_INTERVAL).await;
    }
}

/// Writes the notes without waiting for row locks: the next use of a locked row writes it.
async fn touch(db: &Db, tokens: &[TokenId]) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- auth.token_used
            with free as materialized (
                select token_id from agent_token where token_id = any($1) and revoked_at is null for update skip locked
            )
            update agent_token t set last_used_at = app_now() from free where t.token_id = free.token_id",
            &[&tokens],
        )
        .await?;
    Ok(())
}
