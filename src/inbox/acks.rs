//! Acks of sockets, written in groups. An ack frame has no answer, so many of them can share a
//! statement.

use std::{cmp, collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::store::{self, Ack, Reader, Reads};
use crate::{
    cursor::Cursor,
    db::Db,
    error::Result,
    ids::{AgentId, CredentialId},
    metrics,
};

/// Longest wait of an ack for others. After a crash, events with unwritten acks are delivered again
/// to a client without a cursor; none is lost.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Between two tries while Postgres is away.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Most acks, or agents whose reads are logged, in a statement.
const MAX_PIECE_ROWS: usize = 1_000;

/// A reader, with the credential that vouches for its ack.
type Acker = (Reader, CredentialId);

/// Acks that wait to be written; clones share them.
#[derive(Clone, Default)]
pub struct Acks {
    waiting: Arc<Mutex<HashMap<Acker, Cursor>>>,
    /// Events that agents were sent, to be logged as read. An agent that never acks reads as well.
    delivered: Arc<Mutex<HashMap<AgentId, Cursor>>>,
    notify: Arc<Notify>,
    /// Held while acks are written, so that a reader that needs its ack written can wait for it.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl Acks {
    /// Notes that `reader` has everything up to `cursor`, as `credential` says. A later epoch
    /// replaces an earlier one. The ack counts if the credential is live when it is written.
    pub fn note(&self, reader: &Reader, cursor: Cursor, credential: CredentialId) {
        let order = |cursor: &Cursor| (cursor.epoch, cursor.seq);
        self.waiting
            .lock()
            .entry((reader.clone(), credential))
            .and_modify(|noted| *noted = cmp::max_by_key(cursor, *noted, order))
            .or_insert(cursor);
        self.notify.notify_one();
    }

    /// Notes that an agent was sent everything up to `cursor`.
    pub fn note_delivered(&self, agent: AgentId, cursor: Cursor) {
        self.delivered.lock().insert(agent, cursor);
        self.notify.notify_one();
    }

    /// Writes noted acks until `stop`, and the rest then.
    pub async fn run(&self, db: &Db, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = self.notify.notified() => tokio::time::sleep(FLUSH_INTERVAL).await,
                () = stop.cancelled() => {
                    self.flush(db).await;
                    return;
                }
            }
            if !self.flush(db).await {
                tokio::time::sleep(RETRY_INTERVAL).await;
                self.notify.notify_one();
            }
        }
    }

    /// Writes every noted ack now, and waits for those that are being written. False if Postgres is
    /// away; the acks then wait for the next round. Cancel safe: an ack waits until it is written.
    pub async fn flush(&self, db: &Db) -> bool {
        let _writing = self.writing.lock().await;
        let (acked, is_complete) = self.flush_acks(db).await;
        // A read that is not logged here is logged with the agent's next ack, or by the upkeep.
        if let Err(error) = self.log_pushes(db, acked).await {
            error.log_in("inbox.log_pushes", "the next ack or the upkeep logs them");
        }
        is_complete
    }

    /// Logs the events that agents have acked or were sent.
    async fn log_pushes(&self, db: &Db, acked: Vec<AgentId>) -> Result<()> {
        let delivered = std::mem::take(&mut *self.delivered.lock());
        let epoch = delivered.values().map(|cursor| cursor.epoch).max();
        let mut agents: HashMap<AgentId, Option<i64>> =
            acked.into_iter().map(|agent| (agent, None)).collect();
        agents.extend(
            delivered
                .into_iter()
                .filter(|(_, cursor)| Some(cursor.epoch) == epoch)
                .map(|(agent, cursor)| (agent, Some(cursor.seq))),
        );
        while !agents.is_empty() {
            let piece = agents.iter().take(MAX_PIECE_ROWS);
            let (ids, up_to): (Vec<AgentId>, Vec<Option<i64>>) =
                piece.map(|(id, seq)| (*id, *seq)).unzip();
            let reads = Reads {
                agents: &ids,
                up_to: &up_to,
                after: None,
                epoch,
            };
            let more = store::log_reads(&db.write().await?, &reads).await?;
            ids.iter().for_each(|agent| {
                if !more.contains(agent) {
                    agents.remove(agent);
                }
            });
        }
        Ok(())
    }

    /// Writes the noted acks in pieces. Returns the agents of those that are written, and whether
    /// all are.
    async fn flush_acks(&self, db: &Db) -> (Vec<AgentId>, bool) {
        let noted = self.waiting.lock().clone();
        let Some(epoch) = noted.values().map(|cursor| cursor.epoch).max() else {
            return (Vec::new(), true);
        };
        // Numbers of an earlier epoch name other events now.
        let mut acks: Vec<Ack> = noted
            .iter()
            .filter(|(_, cursor)| cursor.epoch == epoch)
            .map(|((reader, credential), cursor)| Ack {
                reader: reader.clone(),
                seq: cursor.seq,
                credential: Some(*credential),
            })
            .collect();
        acks.sort_unstable_by(|one, other| one.reader.cmp(&other.reader));
        let mut agents = Vec::new();
        for piece in acks.chunks(MAX_PIECE_ROWS) {
            let written = async { store::ack(&db.write().await?, piece, Some(epoch)).await };
            if let Err(error) = written.await {
                error.log_in("inbox.ack", "the acks are written in the next round");
                return (agents, false);
            }
            metrics::acks(piece.len() as u64);
            self.forget(&noted, piece);
            agents.extend(piece.iter().filter_map(|ack| ack.reader.agent()));
        }
        self.waiting
            .lock()
            .retain(|_, cursor| cursor.epoch >= epoch);
        (agents, true)
    }

    /// Forgets written acks. A later ack of a reader stays for the next round.
    fn forget(&self, noted: &HashMap<Acker, Cursor>, written: &[Ack]) {
        let mut waiting = self.waiting.lock();
        for ack in written {
            let Some(credential) = ack.credential else {
                continue;
            };
            let acker = (ack.reader.clone(), credential);
            if waiting.get(&acker) == noted.get(&acker) {
                waiting.remove(&acker);
            }
        }
    }
}
