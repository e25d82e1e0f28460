//! Sessions, tokens, payloads and epochs end, and are used on all nodes meanwhile.

use std::{cell::Cell, time::Duration};

use futures_util::future::join_all;
use history::{Actor, Attempt, Moment, Span, Thing, Watch};
use serde_json::{Value, json};

use super::{DEVICES, Stage, text};
use crate::{
    Result,
    crowd::Line,
    scenarios::history::{
        NODES,
        clients::{Name, Player},
    },
};

/// Uses of a credential at each node, from before its end to after it.
const USES: usize = 16;
const USE_PAUSE: Duration = Duration::from_millis(50);
/// The time between the first use and the end.
const LEAD: Duration = Duration::from_millis(150);
/// The time between two trials of a kind.
const PAUSE: Duration = Duration::from_millis(700);
/// The longest time from a revocation to the close of its socket. A frozen node closes nothing, and
/// a frozen store revokes nothing.
const CLOSE_BOUND: Duration = Duration::from_secs(15);

fn nanos(span: Duration) -> Moment {
    Moment::try_from(span.as_nanos()).unwrap_or(Moment::MAX)
}

impl Stage {
    /// Revokes a device after the other.
    pub(super) async fn end_sessions(&self, over: &Cell<bool>) -> Result<()> {
        // The first two devices decide and answer.
        for device in 2..DEVICES {
            if over.get() {
                break;
            }
            let victim = Player::new(
                &self.world,
                self.users[0].id().to_owned(),
                Name::User(0, device),
            );
            let path = format!("/users/me/devices/device-{device}");
            // 404: an earlier try succeeded, but its answer was lost.
            let ending = self.must(&self.users[0], "DELETE", &path, json!({}), &[200, 404]);
            self.revoke(Thing::Session, &victim, "/users/me", ending)
                .await?;
        }
        Ok(())
    }

    /// Replaces an agent's token again and again.
    pub(super) async fn end_tokens(&self, over: &Cell<bool>) -> Result<()> {
        while !over.get() {
            let (id, token) = self.replaced.borrow().clone();
            let victim = Player::new(&self.world, id.clone(), Name::Agent(token));
            let path = format!("/agents/{id}/token/regenerate");
            let body = json!({ "emergency": true });
            let ending = self.must(&self.users[0], "POST", &path, body, &[200]);
            let own = format!("/agents/{id}");
            let answer = self.revoke(Thing::Token, &victim, &own, ending).await?;
            self.replaced.borrow_mut().1 = text(&answer["data"], "token")?;
        }
        Ok(())
    }

    /// Uses a credential at all nodes while `ending` ends it, and watches a socket of it. Returns the
    /// answer to the end.
    async fn revoke(
        &self,
        thing: Thing,
        victim: &Player,
        path: &str,
        ending: impl Future<Output = Result<(Value, Span)>>,
    ) -> Result<Value> {
        let id = self.id();
        let line = victim.line(id % NODES, None).await;
        let uses = (0..NODES).map(async |node| {
            for _ in 0..USES {
                self.attempt(id, victim, node, path).await;
                tokio::time::sleep(USE_PAUSE).await;
            }
        });
        let ending = async {
            tokio::time::sleep(LEAD).await;
            ending.await
        };
        let watching = async {
            match line {
                Ok(line) => Some(self.closed(line).await),
                Err(_) => None,
            }
        };
        let (_, ended, until) = futures_util::join!(join_all(uses), ending, watching);
        let (answer, span) = ended?;
        self.end(thing, id, span);
        let bound = nanos(CLOSE_BOUND);
        let watch = until.map(|until| Watch { id, until, bound });
        self.found.borrow_mut().watches.extend(watch);
        tokio::time::sleep(PAUSE).await;
        Ok(answer)
    }

    /// The moment when a socket has closed. It is looked at for a while longer than it may live.
    async fn closed(&self, mut line: Line) -> Moment {
        let closing = async { while line.hear().await.is_ok() {} };
        let longest = CLOSE_BOUND + Duration::from_secs(5);
        tokio::time::timeout(longest, closing).await.ok();
        self.now()
    }

    /// A request with a credential that may have ended.
    async fn attempt(&self, id: usize, who: &Player, node: usize, path: &str) {
        let began = self.now();
        if let Some((status, _)) = who.call(node, "GET", path, None).await {
            self.note(id, began, status == 200);
        }
    }

    pub(super) fn note(&self, id: usize, began: Moment, taken: bool) {
        let ended = Some(self.now());
        let span = Span { began, ended };
        let attempt = Attempt { id, span, taken };
        self.found.borrow_mut().attempts.push(attempt);
    }

    /// Deletes messages, and reads at all nodes.
    pub(super) async fn delete_messages(&self, over: &Cell<bool>) -> Result<()> {
        let (author, messages) = (
            &self.users[0],
            format!("/conversations/{}/messages", self.group),
        );
        while !over.get() {
            let id = self.id();
            let body =
                json!({ "payload": { "type": "text" }, "client_message_id": author.fresh_id() });
            let (sent, _) = self
                .must(author, "POST", &messages, body, &[200, 201])
                .await?;
            let message = text(&sent["data"], "message_id")?;
            let path = format!("{messages}/{message}");
            let (_, span) = self
                .must(author, "DELETE", &path, json!({}), &[200])
                .await?;
            self.end(Thing::Payload, id, span);
            let reads = (0..NODES).map(async |node| {
                let began = self.now();
                let page = format!("{messages}?limit=20");
                let Some((200, page)) = self.users[1].call(node, "GET", &page, None).await else {
                    return;
                };
                let shown = page["data"].as_array().into_iter().flatten();
                let mut shown = shown.filter(|one| one["message_id"] == *message);
                self.note(id, began, shown.any(|one| !one["payload"].is_null()));
            });
            join_all(reads).await;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Opens sockets with cursors of an epoch that never was.
    pub(super) async fn forge_epochs(&self, over: &Cell<bool>) -> Result<()> {
        let id = self.id();
        let ended = Some(self.now());
        self.end(Thing::Epoch, id, Span { began: 0, ended });
        while !over.get() {
            tokio::time::sleep(PAUSE).await;
            let node = self.id() % NODES;
            let began = self.now();
            if let Ok(taken) = self.is_forged_cursor_taken(node).await {
                self.note(id, began, taken);
            }
        }
        Ok(())
    }

    async fn is_forged_cursor_taken(&self, node: usize) -> Result<bool> {
        let who = &self.users[1];
        let (_, cursor) = who.line(node, None).await?.caught_up().await?;
        let (epoch, seq) = cursor.split_once('-').ok_or("no cursor")?;
        let other = format!("{:x}-{seq}", u64::from_str_radix(epoch, 16)? + 1);
        let mut line = who.line(node, Some(&other)).await?;
        let answered = async {
            loop {
                let frame: Value = serde_json::from_str(&line.hear().await?)?;
                match frame["type"].as_str() {
                    Some("resync_required") => return Ok(false),
                    Some("caught_up") => return Ok(true),
                    _ => {}
                }
            }
        };
        tokio::time::timeout(CLOSE_BOUND, answered).await?
    }
}
