//! A simulated Postgres, as a node sees it: inboxes, conversations, and the log of the sweep.

use std::{collections::HashMap, sync::Arc, time::Duration};

use blindpipe_protocol::revocation::RevocationReason;
use chrono::{DateTime, TimeDelta, Utc};
use history::Tag;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    chance::Chance,
    faults::{Fault, Faults},
};
use crate::{
    delivery::{DeliveryStore, FreshHeads, LogChanges, LogCursor},
    error::{Code, Result},
    events::EncodedEvent,
    ids::{CredentialId, NodeId, Principal, PrincipalId, UserId},
    inbox::{AppendedEvent, Delivery, Entry, InboxHead},
};

pub const EPOCH: u64 = 1;
/// Events in a page.
const PAGE: usize = 20;

/// The server. Clones share it.
#[derive(Clone)]
pub struct SimulatedPostgres {
    data: Arc<Mutex<Data>>,
    chance: Chance,
    faults: Faults,
    began: Instant,
}

#[derive(Default)]
struct Data {
    /// By conversation, the tags of its messages.
    conversations: Vec<Vec<Tag>>,
    inboxes: HashMap<PrincipalId, Vec<(Instant, EncodedEvent)>>,
    /// The log of the sweep.
    log: Vec<Option<PrincipalId>>,
}

/// An event of a message, as the judge compares it.
pub fn encoded(conversation: usize, seq: u64, tag: Tag) -> EncodedEvent {
    format!("{conversation} {seq} {tag}").into()
}

impl SimulatedPostgres {
    pub fn new(conversations: usize, chance: Chance, faults: Faults) -> Self {
        let data = Data {
            conversations: vec![Vec::new(); conversations],
            ..Data::default()
        };
        SimulatedPostgres {
            data: Arc::new(Mutex::new(data)),
            chance,
            faults,
            began: Instant::now(),
        }
    }

    /// The view of a node.
    pub fn of(&self, node: NodeId) -> Connection {
        Connection {
            postgres: self.clone(),
            node,
        }
    }

    /// The messages of each conversation, oldest first.
    pub fn ends(&self) -> Vec<Vec<(u64, Tag)>> {
        let data = self.data.lock();
        let end = |tags: &Vec<Tag>| (1..).zip(tags.iter().copied()).collect();
        data.conversations.iter().map(end).collect()
    }

    /// The head of an inbox, as nobody but the judge sees it.
    pub fn inbox_head(&self, principal: PrincipalId) -> u64 {
        self.data.lock().head(principal).unsigned_abs()
    }

    /// Stores a message: its number, and the event for its members.
    pub fn commit(
        &self,
        conversation: usize,
        tag: Tag,
        members: &[PrincipalId],
    ) -> (u64, AppendedEvent) {
        let mut data = self.data.lock();
        data.conversations[conversation].push(tag);
        let seq = data.conversations[conversation].len() as u64;
        let event = encoded(conversation, seq, tag);
        let mut deliveries = Vec::new();
        for member in members {
            let inbox = data.inboxes.entry(*member).or_default();
            inbox.push((Instant::now(), event.clone()));
            deliveries.push(Delivery {
                recipient: Principal::User(UserId(member.0)),
                seq: inbox.len() as i64,
                has_webhook: false,
            });
        }
        let appended = AppendedEvent {
            encoded: event,
            deliveries,
            trace: None,
        };
        (seq, appended)
    }

    fn at(&self, moment: Instant) -> DateTime<Utc> {
        let age = TimeDelta::from_std(moment - self.began).expect("it fits");
        DateTime::<Utc>::UNIX_EPOCH + age
    }
}

/// A node's connections.
#[derive(Clone)]
pub struct Connection {
    postgres: SimulatedPostgres,
    node: NodeId,
}

impl Connection {
    /// A statement's way to the server and back.
    async fn call<T>(&self, answer: impl FnOnce(&mut Data) -> T) -> Result<T> {
        let SimulatedPostgres {
            data,
            chance,
            faults,
            ..
        } = &self.postgres;
        faults.runs(self.node).await;
        tokio::time::sleep(chance.ms(0, 6)).await;
        if faults.is(Fault::PostgresErrors(self.node)) {
            return Err(Code::ServiceUnavailable.into());
        }
        let answer = answer(&mut data.lock());
        tokio::time::sleep(chance.ms(0, 6)).await;
        faults.runs(self.node).await;
        Ok(answer)
    }

    /// The head of an inbox.
    pub async fn head(&self, principal: PrincipalId) -> Result<i64> {
        self.call(|data| data.head(principal)).await
    }

    /// The events of an inbox after a number.
    pub async fn page(&self, principal: PrincipalId, after: i64) -> Result<Vec<Entry>> {
        let entries = self.call(|data| {
            let inbox = data.inboxes.get(&principal).map_or(&[][..], Vec::as_slice);
            let entries = (1..).zip(inbox).skip(usize::try_from(after).unwrap_or(0));
            let entries = entries.take(PAGE).map(|(seq, (_, encoded))| Entry {
                seq,
                encoded: encoded.clone(),
            });
            entries.collect()
        });
        entries.await
    }
}

impl Data {
    fn head(&self, principal: PrincipalId) -> i64 {
        self.inboxes.get(&principal).map_or(0, Vec::len) as i64
    }

    fn heads(&self, principals: impl Iterator<Item = PrincipalId>) -> Vec<InboxHead> {
        let head = |principal| InboxHead {
            principal,
            seq: self.head(principal),
        };
        principals.map(head).collect()
    }
}

impl DeliveryStore for Connection {
    async fn changes(&self, after: &LogCursor) -> Result<LogChanges> {
        let after = after.end();
        let changes = self.call(|data| {
            let seen = usize::try_from(after)
                .unwrap_or(usize::MAX)
                .min(data.log.len());
            let news = &data.log[seen..];
            LogChanges {
                epoch: EPOCH,
                cursor: LogCursor::from_column(vec![data.log.len() as i64]),
                credentials: Vec::new(),
                inboxes: news.iter().flatten().copied().collect(),
                any_inbox: news.iter().any(Option::is_none),
                is_cut: false,
            }
        });
        changes.await
    }

    async fn heads(&self, principals: &[PrincipalId]) -> Result<Vec<InboxHead>> {
        self.call(|data| data.heads(principals.iter().copied()))
            .await
    }

    async fn heads_beyond(&self, known: &[InboxHead]) -> Result<Vec<InboxHead>> {
        let beyond = self.call(|data| {
            let heads = data.heads(known.iter().map(|one| one.principal));
            let pairs = heads.into_iter().zip(known);
            let beyond = pairs.filter(|(head, known)| head.seq > known.seq);
            beyond.map(|(head, _)| head).collect()
        });
        beyond.await
    }

    async fn fresh_heads(
        &self,
        after: Option<DateTime<Utc>>,
        (max_age, min_age): (Duration, Duration),
    ) -> Result<FreshHeads> {
        let now = Instant::now();
        let fresh = self.call(|data| {
            let mut fresh = FreshHeads {
                reached: Vec::new(),
                last: None,
                is_more: false,
            };
            for (principal, inbox) in &data.inboxes {
                let is_fresh = |moment: Instant| {
                    let age = now.saturating_duration_since(moment);
                    let is_new = after.is_none_or(|after| self.postgres.at(moment) > after);
                    is_new && age < max_age && age >= min_age
                };
                let last = (1..).zip(inbox).filter(|(_, (at, _))| is_fresh(*at)).last();
                if let Some((seq, (at, _))) = last {
                    fresh.last = fresh.last.max(Some(self.postgres.at(*at)));
                    fresh.reached.push(InboxHead {
                        principal: *principal,
                        seq,
                    });
                }
            }
            fresh
        });
        fresh.await
    }

    async fn revoked_credentials(
        &self,
        _: &[CredentialId],
    ) -> Result<Vec<(RevocationReason, CredentialId)>> {
        self.call(|_| Vec::new()).await
    }

    async fn record_unpublished(&self, inboxes: &[Option<PrincipalId>]) -> Result<()> {
        self.call(|data| data.log.extend(inboxes)).await
    }
}
