//! Acks of sockets, written in groups. An ack frame has no answer, so many of them can share a
//! statement.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::store::{self, Reader};
use crate::{db::Db, metrics};

/// Longest wait of an ack for others. After a crash, events with unwritten acks are delivered again
/// to a client without a cursor; none is lost.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// The acks that wait to be written; clones share them.
#[derive(Clone, Default)]
pub struct Acks {
    waiting: Arc<Mutex<HashMap<Reader, i64>>>,
    bell: Arc<Notify>,
}

impl Acks {
    /// Records that `reader` has everything up to `seq`.
    pub fn note(&self, reader: &Reader, seq: i64) {
        let mut waiting = self.waiting.lock();
        if let Some(noted) = waiting.get_mut(reader) {
            *noted = seq.max(*noted);
        } else {
            waiting.insert(reader.clone(), seq);
        }
        self.bell.notify_one();
    }

    /// Writes the recorded acks until `stop`, and the rest then.
    pub async fn run(self, db: Db, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.bell.notified() => tokio::time::sleep(FLUSH_INTERVAL).await,
                () = stop.cancelled() => return self.flush(&db).await,
            }
            self.flush(&db).await;
        }
    }

    async fn flush(&self, db: &Db) {
        let mut acks: Vec<(Reader, i64)> = std::mem::take(&mut *self.waiting.lock())
            .into_iter()
            .collect();
        if acks.is_empty() {
            return;
        }
        acks.sort_unstable();
        let written = async { store::ack(&db.read().await?, &acks).await };
        match written.await {
            Ok(()) => metrics::acks(acks.len() as u64),
            Err(error) => {
                error.log();
                // Postgres is away: keep them for the next round, unless newer acks have come.
                acks.iter()
                    .for_each(|(reader, seq)| self.note(reader, *seq));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
