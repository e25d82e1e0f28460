//! The reading of a turn: the inbox from the agent's cursor, and the deliveries that an earlier
//! turn has left open.

use std::sync::atomic::Ordering;

use chrono::{DateTime, TimeDelta, Utc};

use super::{
    super::{
        super::{
            DeliveryAttempt, DeliveryStatus,
            client::json,
            rules::MAX_ATTEMPTS,
            store::deliveries::{self, DeliveryRow},
        },
        SharedParts,
        lanes::{HeldBytes, Item, Lane, LoggedDelivery},
        settle,
    },
    Stop, Turn,
};
use crate::{
    error::Result,
    events,
    limits::{
        buffers::Owner,
        quotas::{MAX_MESSAGE_BYTES, MAX_PAGE_EVENTS, MB},
    },
};

/// Events that wait in a turn; no more are read meanwhile.
const MAX_WAITING_EVENTS: usize = 100;
/// Bytes of events that a turn holds. It reads on while another page fits.
const MAX_TURN_BYTES: usize = 4 * MB;
/// Bytes of a page of the inbox.
const TURN_PAGE_BYTES: usize = 3 * MB;
/// How far a turn reads beyond the agent's cursor. A conversation whose receiver fails holds up the
/// others after this many events.
const MAX_EVENTS_AHEAD: i64 = 512;

impl Turn {
    /// Loads the deliveries that an earlier turn has left open.
    pub(super) async fn load_open(&mut self) -> Result<()> {
        let (shared, agent) = (self.context.shared.clone(), self.context.agent);
        let acked = self.standing.lock().window.acked();
        deliveries::overtake(&shared.db, agent, acked).await?;
        for row in deliveries::open(&shared.db, agent).await? {
            let Some(seq) = row.seq else { continue };
            if row.is_replay {
                self.add_replay(row, seq).await?;
            } else if row.attempts >= MAX_ATTEMPTS && row.status == DeliveryStatus::Pending {
                // A worker died during the last attempt.
                let entries = logged(&row, self.now()).interrupted;
                settle::give_up(&self.context, row.id, &entries).await?;
                self.stop = Some(Stop::Lost);
            } else {
                self.logged.insert(seq, row);
            }
        }
        self.has_unloaded = false;
        Ok(())
    }

    async fn add_replay(&mut self, row: DeliveryRow, seq: i64) -> Result<()> {
        let inbox = &self.context.shared.inbox;
        let page = inbox.read(self.context.agent.into(), seq - 1, 1).await?;
        if let Some(entry) = page.into_iter().find(|entry| entry.seq == seq) {
            let lane = Lane::Replay(row.id);
            self.lanes
                .push(lane, self.item(seq, entry.encoded, Some(row), None));
        }
        Ok(())
    }

    fn item(
        &self,
        seq: i64,
        encoded: events::EncodedEvent,
        row: Option<DeliveryRow>,
        bytes: Option<HeldBytes>,
    ) -> Item {
        let not_before = row.as_ref().and_then(|row| {
            let wait = row.wait_seconds?;
            let wait = TimeDelta::try_milliseconds((wait * 1000.0) as i64)?;
            Some(self.now() + wait)
        });
        Item {
            seq,
            encoded,
            logged: row.map(|row| logged(&row, self.now())),
            not_before,
            trace: self.traces.get(&seq).copied(),
            bytes,
        }
    }

    /// Reads on, while there is room in the turn and in the node. Without room in the node, a turn
    /// that holds nothing ends and lets others go on.
    pub(super) async fn read(&mut self) -> Result<()> {
        while self.has_more && self.stop.is_none() {
            let acked = self.standing.lock().window.acked();
            self.read_to = self.read_to.max(acked);
            let room = (acked + MAX_EVENTS_AHEAD - self.read_to).min(MAX_PAGE_EVENTS);
            let held = self.held.load(Ordering::Relaxed);
            if self.lanes.waiting() >= MAX_WAITING_EVENTS
                || room <= 0
                || held + TURN_PAGE_BYTES > MAX_TURN_BYTES
            {
                return Ok(());
            }
            let SharedParts { inbox, buffers, .. } = &*self.context.shared;
            let agent = self.context.agent.into();
            let page = inbox
                .read_page(agent, self.read_to, room, TURN_PAGE_BYTES as i64)
                .await?;
            let bytes: usize = page.iter().map(|entry| entry.encoded.len()).sum();
            let Ok(mut permit) = buffers.take(Owner::Principal(agent), bytes) else {
                if self.lanes.waiting() == 0 && self.calls.is_empty() {
                    self.stop = Some(Stop::NoRoom);
                }
                return Ok(());
            };
            // A page ends early only if it would grow too large.
            let is_full = bytes + 2 * MAX_MESSAGE_BYTES >= TURN_PAGE_BYTES;
            self.has_more = page.len() as i64 == room || is_full;
            for entry in page {
                let own = permit.split(entry.encoded.len());
                let own = HeldBytes::new(&self.held, own);
                self.add(entry.seq, entry.encoded, own);
            }
        }
        Ok(())
    }

    fn add(&mut self, seq: i64, encoded: events::EncodedEvent, bytes: HeldBytes) {
        {
            let mut standing = self.standing.lock();
            // Numbers without an entry have expired.
            (self.read_to + 1..seq).for_each(|gone| standing.window.finish(gone));
            self.read_to = seq;
            if standing.window.is_done(seq) {
                return;
            }
        }
        let lane = events::conversation_of(&encoded).map_or(Lane::Others, Lane::Conversation);
        let row = self.logged.remove(&seq);
        self.lanes
            .push(lane, self.item(seq, encoded, row, Some(bytes)));
    }

    /// Loads deliveries that were asked for by hand during the turn, and hastens open ones.
    pub(super) async fn load_replays(&mut self) -> Result<()> {
        let (shared, agent) = (self.context.shared.clone(), self.context.agent);
        for row in deliveries::open(&shared.db, agent).await? {
            let Some(seq) = row.seq else { continue };
            if row.is_replay && !self.lanes.has(Lane::Replay(row.id)) {
                self.add_replay(row, seq).await?;
            } else if row.wait_seconds.is_some_and(|wait| wait <= 0.0) {
                self.lanes.hasten(row.id);
            }
        }
        Ok(())
    }
}

fn logged(row: &DeliveryRow, now: DateTime<Utc>) -> LoggedDelivery {
    let finished = i32::try_from(row.log.len()).unwrap_or(i32::MAX);
    let interrupted = (finished + 1..=row.attempts).map(|n| {
        json(&DeliveryAttempt {
            n,
            at: now.into(),
            duration_ms: 0,
            response_status: None,
            error: Some("interrupted".to_owned()),
            replies: Vec::new(),
        })
    });
    let succeeded = row.log.iter().any(|entry| {
        serde_json::from_str::<DeliveryAttempt>(entry).is_ok_and(|entry| entry.error.is_none())
    });
    LoggedDelivery {
        id: row.id,
        interrupted: interrupted.collect(),
        succeeded,
        is_replay: row.is_replay,
    }
}
