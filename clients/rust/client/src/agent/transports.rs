//! The ways by which events come to a running agent: a socket, or long polls.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use blindpipe_protocol::{
    agents::{Agent, ConnectionMode},
    cursor::Cursor,
    errors::Code,
    frames::{AgentAuth, Auth, ClientFrame, Ready, ResyncRequired},
    ids::ConnectionId,
    inbox::{Ack, AckFrame, Acked},
};
use futures_util::{FutureExt, future::BoxFuture};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{core::Core, inbox::Inbox};
use crate::{
    Error, InboxEvent, Result,
    hooks::Hook,
    transport::{Call, Frame, Socket, SocketOwner, full_jitter},
};

const POLL_WAIT_SECONDS: u32 = 25;
const MAX_POLL_EVENTS: usize = 1_000;
/// A page with fewer events has all that there were. One with more may have ended at its 4 MB.
const SHORT_PAGE_EVENTS: usize = 100;
/// A poll waits so long for the handlers of the one before it. Then it looks for other events.
const SETTLE_WAIT: Duration = Duration::from_secs(10);
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Feeds an inbox from a socket, and leaves a backlog on the server while the inbox is full.
pub(super) struct SocketReader {
    pub(super) core: Arc<Core>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) socket: Arc<Socket>,
    pub(super) standby: Arc<AtomicBool>,
    /// The group whose conversations this process shares.
    pub(super) group: Option<String>,
    /// This connection is a standby's to its end: its events are learned from, and come again.
    pub(super) learns: AtomicBool,
    /// The rest of this connection's events comes again with the next one.
    pub(super) left: AtomicBool,
    pub(super) resyncs: Resyncs,
}

/// The places to begin at after cursors that are of no use any more, one after the other: after the
/// last acknowledgement, with the oldest event, and then with the newest.
#[derive(Default)]
pub(super) struct Resyncs {
    has_resumed: AtomicBool,
    /// Since a place was of use.
    count: AtomicU32,
}

enum Begin {
    Acknowledged,
    Oldest,
    Head,
}

impl Begin {
    const fn cursor(&self, oldest: Cursor, head: Cursor) -> Option<Cursor> {
        match self {
            Self::Acknowledged => None,
            Self::Oldest => Some(oldest),
            Self::Head => Some(head),
        }
    }
}

impl Resyncs {
    fn next(&self) -> Begin {
        match self.count.fetch_add(1, Ordering::Relaxed) {
            0 if self.has_resumed.load(Ordering::Relaxed) => Begin::Acknowledged,
            0 | 1 => Begin::Oldest,
            _ => Begin::Head,
        }
    }
}

impl SocketReader {
    /// Reads until the agent stops, acknowledges, and closes.
    pub(super) async fn run(&self) -> Result<()> {
        let closing = CancellationToken::new();
        let work = async {
            let worked = self.inbox.work().await;
            self.flush_ack();
            closing.cancel();
            worked
        };
        let both = async { tokio::try_join!(work, self.socket.run(self, &closing)) };
        tokio::select! {
            ended = both => ended.map(drop),
            () = self.acknowledge() => Ok(()),
        }
    }

    async fn acknowledge(&self) {
        loop {
            self.inbox.ack_due().await;
            self.flush_ack();
        }
    }

    fn flush_ack(&self) {
        self.inbox.flush_ack(|cursor| {
            let frame = ClientFrame::Ack(AckFrame { cursor });
            self.socket.send(&frame)
        });
    }

    /// This connection goes on at the head. The next one begins at what was not handled.
    fn resync(&self, &ResyncRequired { oldest, head }: &ResyncRequired) {
        let learns = self.learns.load(Ordering::Relaxed);
        let begin = if learns {
            Begin::Acknowledged
        } else {
            self.resyncs.next()
        };
        self.inbox.resync(begin.cursor(oldest, head), head);
        self.core.hooks.call(&Hook::Resync { oldest, head });
        if !learns && !matches!(begin, Begin::Head) {
            self.leave();
        }
    }

    fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        self.socket.leave();
    }

    /// From the last acknowledgement on, events are handled here.
    pub(super) fn activate(&self) {
        if self.standby.swap(false, Ordering::Relaxed) {
            self.leave();
        }
    }
}

impl SocketOwner for SocketReader {
    fn auth(&self) -> BoxFuture<'_, Result<Auth>> {
        let auth = async {
            self.inbox.room().await;
            let standby = self.standby.load(Ordering::Relaxed);
            self.learns.store(standby, Ordering::Relaxed);
            let resume = self.inbox.resume(standby);
            let resume = resume.filter(|_| self.group.is_none());
            let has_resumed = &self.resyncs.has_resumed;
            has_resumed.store(resume.is_some(), Ordering::Relaxed);
            Ok(Auth::Agent(AgentAuth {
                agent_id: self.core.agent_id,
                token: self.core.token.clone(),
                resume,
                mode: self.group.is_some().then_some(ConnectionMode::Shared),
                group: self.group.clone(),
            }))
        };
        auth.boxed()
    }

    fn lost(&self, was_silent: bool) {
        self.inbox.lost(was_silent);
    }

    fn renew(&self) -> BoxFuture<'_, Result<bool>> {
        std::future::ready(Ok(false)).boxed()
    }

    fn holders(&self) -> BoxFuture<'_, Vec<ConnectionId>> {
        let holders = async {
            let call = Call::get(format!("/agents/{}", self.core.agent_id));
            let agent = self.core.http.data::<Agent>(call).await.ok();
            let connections = agent.map(|agent| agent.connections).unwrap_or_default();
            connections.iter().map(|it| it.connection_id).collect()
        };
        holders.boxed()
    }

    fn ready(&self, ready: &Ready) {
        self.left.store(false, Ordering::Relaxed);
        self.inbox
            .replayed_to
            .store(ready.replay.to, Ordering::Relaxed);
        // Acks that the last connection did not take go to this one.
        self.flush_ack();
    }

    fn frame(&self, frame: Frame) {
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        match frame.kind.as_str() {
            "event" => {
                let standby = self.learns.load(Ordering::Relaxed);
                self.resyncs.count.store(0, Ordering::Relaxed);
                match frame.parse::<InboxEvent>() {
                    Some(event) => self.inbox.take(event, standby),
                    None => self.core.hooks.call(&Hook::Undecryptable {
                        reason: blindpipe_e2ee::Error::Malformed,
                        event_id: None,
                        conversation_id: None,
                    }),
                }
            }
            "resync_required" => {
                if let Some(required) = frame.parse() {
                    self.resync(&required);
                }
            }
            // The last place was of use, though it held no event.
            "caught_up" => self.resyncs.count.store(0, Ordering::Relaxed),
            _ => {}
        }
        if self.inbox.is_full() {
            self.leave();
        }
    }
}

/// A page of a poll, with events of a newer server too.
#[derive(Deserialize)]
struct Page {
    data: Vec<InboxEvent>,
    next_cursor: Cursor,
}

/// Long polls until the agent stops. The cursor passed is the one that is acknowledged.
pub(super) async fn poll(core: &Core, inbox: &Inbox, stopping: &CancellationToken) -> Result<()> {
    let (polled, worked) = tokio::join!(
        async {
            let polled = poll_all(core, inbox, stopping).await;
            stopping.cancel();
            polled
        },
        inbox.work()
    );
    if let Some(cursor) = inbox.ackable() {
        let body = Ack {
            cursor: Some(cursor),
            up_to_seq: None,
        };
        let call = Call::post(format!("/agents/{}/ack", core.agent_id), &body);
        core.http.data::<Acked>(call.repeatable()).await?;
    }
    polled.and(worked)
}

async fn poll_all(core: &Core, inbox: &Inbox, stopping: &CancellationToken) -> Result<()> {
    let mut cursor: Option<Cursor> = None;
    let mut failures = 0;
    let resyncs = Resyncs::default();
    // Until a page is short, its events may have been there before this run.
    let mut looks_back = true;
    // The events whose handlers still run, which come again.
    let mut taken = HashSet::new();
    while !stopping.is_cancelled() {
        let wait = if looks_back { 0 } else { POLL_WAIT_SECONDS };
        let call = Call::get(format!("/agents/{}/messages/poll", core.agent_id))
            .query("cursor", cursor)
            .query("wait", Some(wait))
            .query("limit", Some(MAX_POLL_EVENTS));
        let page = tokio::select! {
            page = core.http.json::<Page>(call) => page,
            () = stopping.cancelled() => return Ok(()),
        };
        match page {
            Ok(page) => {
                failures = 0;
                resyncs.count.store(0, Ordering::Relaxed);
                if let Some(last) = page.data.last().filter(|_| looks_back) {
                    inbox.replayed_to.store(last.seq, Ordering::Relaxed);
                }
                looks_back &= page.data.len() >= SHORT_PAGE_EVENTS;
                for event in page.data {
                    if taken.insert((event.cursor.epoch, event.cursor.seq)) {
                        inbox.take(event, false);
                    }
                }
                let is_settled = inbox.settled(SETTLE_WAIT).await;
                let end = is_settled.then_some(page.next_cursor);
                cursor = inbox.ackable().or(cursor).or(end);
                if is_settled {
                    taken.clear();
                }
            }
            Err(error) if error.code() == Some(Code::CursorExpired) => {
                let has_resumed = &resyncs.has_resumed;
                has_resumed.store(cursor.is_some(), Ordering::Relaxed);
                cursor = expired(core, inbox, &resyncs, &error);
                // A server that refuses this place too is not asked without a pause.
                if resyncs.count.load(Ordering::Relaxed) > 2 {
                    tokio::time::sleep(full_jitter(failures, FIRST_WAIT, MAX_WAIT)).await;
                    failures += 1;
                }
            }
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(full_jitter(failures, FIRST_WAIT, MAX_WAIT)).await;
                failures += 1;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Events are missing: the next poll begins at what was not handled.
fn expired(core: &Core, inbox: &Inbox, resyncs: &Resyncs, error: &Error) -> Option<Cursor> {
    let params = &error.api()?.params;
    let cursor = |name: &str| params.get(name)?.as_str()?.parse::<Cursor>().ok();
    let (oldest, head) = (cursor("oldest")?, cursor("head")?);
    let begin = resyncs.next().cursor(oldest, head);
    inbox.resync(begin, head);
    core.hooks.call(&Hook::Resync { oldest, head });
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_takes_no_cursor_is_not_asked_for_ever() {
        let resyncs = Resyncs::default();
        resyncs.has_resumed.store(true, Ordering::Relaxed);
        let (oldest, head) = (Cursor { epoch: 7, seq: 3 }, Cursor { epoch: 7, seq: 9 });
        let mut begins = Vec::new();
        for _ in 0..4 {
            begins.push(resyncs.next().cursor(oldest, head));
        }
        assert_eq!(begins, [None, Some(oldest), Some(head), Some(head)]);
    }
}
