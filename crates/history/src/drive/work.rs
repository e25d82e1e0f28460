//! The workers: they send and read.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Actor, Chance, Drive, NEWEST, RETRY_DELAY, TIMEOUT, tag_of};
use crate::{Read, Send, Span, Tag};

/// The manner in which a client sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// A single try, whatever the answer.
    Once,
    /// Twice at the same time, at two nodes under the same id.
    Twice,
    /// Repeated under the same id at the next node, until the outcome is known.
    Sure,
}

fn refused(answer: Option<&Option<(u16, Value)>>) -> bool {
    matches!(answer, Some(Some((400..500, _))))
}

fn stored(answer: &Option<(u16, Value)>) -> Option<u64> {
    match answer {
        Some((200 | 201, answer)) => answer["data"]["seq"].as_u64(),
        _ => None,
    }
}

pub(super) fn seen(page: &Value) -> Vec<(u64, Tag)> {
    let messages = page["data"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    messages
        .iter()
        .filter_map(|message| Some((message["seq"].as_u64()?, tag_of(message)?)))
        .collect()
}

impl<A: Actor> Drive<'_, A> {
    /// Runs a worker, which sends mostly and reads sometimes, as any actor and at any node.
    pub(super) async fn work(&self, n: usize) {
        let mut chance = Chance::new(self.plan.seed.wrapping_add(n as u64));
        for _ in 0..self.plan.operations / self.plan.workers {
            let conversation = chance.below(self.plan.conversations);
            let mut actor = chance.below(self.actors.len());
            if !self.is_in(actor, conversation) {
                actor = 0;
            }
            let node = chance.below(self.plan.nodes);
            match chance.below(20) {
                0..=4 => self.read(actor, conversation, node).await,
                5 => {
                    self.send(actor, conversation, node, self.tag(), Manner::Twice)
                        .await;
                }
                6..=9 => {
                    self.send(actor, conversation, node, self.tag(), Manner::Once)
                        .await;
                }
                _ => {
                    self.send(actor, conversation, node, self.tag(), Manner::Sure)
                        .await;
                }
            }
        }
    }

    pub(super) async fn send(
        &self,
        actor: usize,
        conversation: usize,
        node: usize,
        tag: Tag,
        manner: Manner,
    ) {
        let (who, id) = (&self.actors[actor], &self.conversations[conversation]);
        let path = if who.is_agent() {
            format!("/agents/{}/conversations/{id}/messages", who.id())
        } else {
            format!("/conversations/{id}/messages")
        };
        let payload = json!({ "type": "text", "tag": tag.to_string() });
        let body = json!({ "payload": payload, "client_message_id": who.fresh_id() }).to_string();
        let at_once = if manner == Manner::Twice { 2 } else { 1 };
        let (began, since) = (self.now(), Instant::now());
        let (mut answers, mut tries) = (Vec::new(), 0);
        loop {
            let nodes = (0..at_once).map(|n| (node + tries + n) % self.plan.nodes);
            let calls = nodes.map(|node| who.call(node, "POST", &path, Some(body.clone())));
            answers.extend(join_all(calls).await);
            let known =
                answers.iter().any(|answer| stored(answer).is_some()) || refused(answers.last());
            if known || manner != Manner::Sure || since.elapsed() > TIMEOUT {
                break;
            }
            tries += 1;
            tokio::time::sleep(RETRY_DELAY).await;
        }
        let ended = self.now();
        // A try without an answer may yet succeed, whatever the other tries were answered.
        let refused = answers.iter().all(|answer| refused(Some(answer)));
        let mut seqs: Vec<u64> = answers.iter().filter_map(stored).collect();
        seqs.sort_unstable();
        seqs.dedup();
        let not_for = who.is_agent().then_some(actor);
        let record = |seq: Option<u64>| {
            let answered = seq.is_some() || refused;
            let span = Span {
                began,
                ended: answered.then_some(ended),
            };
            Send {
                conversation,
                tag,
                span,
                seq,
                refused,
                not_for,
            }
        };
        let sends = &mut self.history.borrow_mut().sends;
        if seqs.is_empty() {
            sends.push(record(None));
        }
        // Two different answers to a message become two records, and the judge reports them.
        sends.extend(seqs.into_iter().map(|seq| record(Some(seq))));
    }

    async fn read(&self, actor: usize, conversation: usize, node: usize) {
        let (who, id) = (&self.actors[actor], &self.conversations[conversation]);
        let prefix = if who.is_agent() {
            format!("/agents/{}", who.id())
        } else {
            String::new()
        };
        let path = format!("{prefix}/conversations/{id}/messages?limit={NEWEST}");
        let began = self.now();
        let Some((200, page)) = who.call(node, "GET", &path, None).await else {
            return;
        };
        let span = Span {
            began,
            ended: Some(self.now()),
        };
        let seen = seen(&page);
        self.history.borrow_mut().reads.push(Read {
            conversation,
            reader: actor,
            span,
            seen,
        });
    }
}
