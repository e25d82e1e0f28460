//! Makes a history. Many clients send, read and listen concurrently, and an owner removes and adds
//! a member again and again. Nodes may die meanwhile. Most clients then repeat a send at another
//! node under its first id. Some never learn the outcome.

mod chance;
mod listen;
mod work;

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

pub use self::chance::Chance;
use self::work::Manner;
use crate::{History, Moment, Span, Stay, Tag};

/// A principal as a client of any node.
pub trait Actor {
    /// The principal's id.
    fn id(&self) -> &str;
    /// Whether the principal is an agent, whose paths differ.
    fn is_agent(&self) -> bool;
    /// Status and body of node `node`'s answer; none if there was no answer.
    fn call(
        &self,
        node: usize,
        method: &'static str,
        path: &str,
        body: Option<String>,
    ) -> impl Future<Output = Option<(u16, Value)>>;
    /// A ULID that is used for a single message.
    fn fresh_id(&self) -> String;
}

/// A principal's socket.
pub trait Subscriber {
    /// The next frame; none after the socket has closed.
    fn next(&mut self) -> impl Future<Output = Option<Value>>;
}

/// The size of a history.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub conversations: usize,
    /// Sends and reads, over all workers.
    pub operations: usize,
    pub workers: usize,
    pub seed: u64,
}

/// Longest silence while the last messages are still to arrive.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a repeated request.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// The time for which the guest stays, and for which it is mostly away: changes meet sends.
const BRIEF_STAY: Duration = Duration::from_millis(20);
/// One absence in so many is long, so that whole sends fall into it.
const LONG_ABSENCE_EACH: u32 = 4;
const LONG_ABSENCE: Duration = Duration::from_millis(700);
const DONE: &[u16] = &[200, 201];
/// Messages in a page of the newest.
const NEWEST: usize = 20;

struct Drive<'a, A> {
    plan: Plan,
    actors: &'a [A],
    conversations: Vec<String>,
    start: Instant,
    history: RefCell<History>,
    next_tag: Cell<Tag>,
    /// Set when the workers have finished.
    done: Cell<bool>,
}

/// Runs `actors` against the nodes. The first actor is a user who owns every conversation. It
/// removes the last actor from the first conversation and adds it again, over and over. Agents in
/// between have a relation with the first actor. `ears` are the actors' sockets in this order, and
/// were open before.
pub async fn drive<A: Actor, E: Subscriber>(
    plan: Plan,
    actors: &[A],
    ears: &mut [E],
) -> Result<History, String> {
    let mut drive = Drive {
        plan,
        actors,
        conversations: Vec::new(),
        start: Instant::now(),
        history: RefCell::default(),
        next_tag: Cell::new(0),
        done: Cell::new(false),
    };
    for n in 0..plan.conversations {
        let conversation = drive.open(n).await?;
        drive.conversations.push(conversation);
    }
    let drive = &drive;
    let heard = join_all(
        ears.iter_mut()
            .enumerate()
            .map(|(principal, ears)| drive.listen(principal, ears)),
    );
    let acting = async {
        let workers = async {
            join_all((0..plan.workers).map(|n| drive.work(n))).await;
            drive.done.set(true);
        };
        let ((), changes) = futures_util::join!(workers, drive.come_and_go());
        changes?;
        // The last message of each conversation. A listener that has it has every message.
        for conversation in 0..plan.conversations {
            drive
                .send(0, conversation, 0, last_tag(conversation), Manner::Sure)
                .await;
        }
        Ok::<_, String>(())
    };
    let (heard, acted) = futures_util::join!(heard, acting);
    acted?;
    let mut ends = Vec::new();
    for conversation in 0..plan.conversations {
        ends.push(drive.whole(conversation).await?);
    }
    Ok(History {
        heard,
        ends,
        ..drive.history.take()
    })
}

fn last_tag(conversation: usize) -> Tag {
    Tag::MAX - conversation as Tag
}

/// The tag of this driver's message, in an event or a page.
fn tag_of(message: &Value) -> Option<Tag> {
    message["payload"]["tag"].as_str()?.parse().ok()
}

impl<A: Actor> Drive<'_, A> {
    fn now(&self) -> Moment {
        Moment::try_from(self.start.elapsed().as_nanos()).unwrap_or(Moment::MAX)
    }

    fn tag(&self) -> Tag {
        self.next_tag.set(self.next_tag.get() + 1);
        self.next_tag.get()
    }

    /// A request of the owner, repeated at all nodes until it succeeds. It took effect at some
    /// moment since the first try.
    async fn must(
        &self,
        method: &'static str,
        path: &str,
        body: Option<Value>,
        done: &[u16],
    ) -> Result<(Value, Span), String> {
        let (began, since) = (self.now(), Instant::now());
        let body = body.map(|body| body.to_string());
        for node in (0..self.plan.nodes).cycle() {
            match self.actors[0].call(node, method, path, body.clone()).await {
                Some((status, answer)) if done.contains(&status) => {
                    return Ok((
                        answer,
                        Span {
                            began,
                            ended: Some(self.now()),
                        },
                    ));
                }
                None | Some((500.., _)) if since.elapsed() < TIMEOUT => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                other => return Err(format!("{method} {path}: {other:?}")),
            }
        }
        Err("no node".to_owned())
    }

    fn came(&self, conversation: usize, principal: usize, came: Span) {
        let stay = Stay {
            conversation,
            principal,
            came,
            left: None,
        };
        self.history.borrow_mut().stays.push(stay);
    }

    fn left(&self, conversation: usize, principal: usize, left: Span) {
        let mut history = self.history.borrow_mut();
        let mut stays = history.stays.iter_mut().rev();
        if let Some(stay) =
            stays.find(|stay| stay.conversation == conversation && stay.principal == principal)
        {
            stay.left = Some(left);
        }
    }

    async fn open(&self, conversation: usize) -> Result<String, String> {
        let users = self.actors.iter().filter(|actor| !actor.is_agent());
        let ids: Vec<&str> = users.map(Actor::id).collect();
        let body = json!({ "title": format!("conversation {conversation}"), "member_ids": ids });
        let (made, span) = self.must("POST", "/groups", Some(body), DONE).await?;
        let id = made["data"]["conversation_id"]
            .as_str()
            .ok_or("no id")?
            .to_owned();
        for (principal, actor) in self
            .actors
            .iter()
            .enumerate()
            .filter(|(n, _)| self.is_in(*n, conversation))
        {
            let mut came = span;
            if actor.is_agent() {
                let body = json!({ "agent_id": actor.id(), "visibility": "all" });
                (_, came) = self
                    .must(
                        "POST",
                        &format!("/groups/{id}/agent-instances"),
                        Some(body),
                        DONE,
                    )
                    .await?;
            }
            self.came(conversation, principal, came);
        }
        Ok(id)
    }

    /// Whether the principal is a member. Each conversation has a single agent, because two that
    /// answer each other soon fall silent.
    fn is_in(&self, principal: usize, conversation: usize) -> bool {
        !self.actors[principal].is_agent() || principal % self.plan.conversations == conversation
    }

    /// Removes the last actor from the first conversation and adds it again until the workers are
    /// done.
    async fn come_and_go(&self) -> Result<(), String> {
        let last = self.actors.len() - 1;
        let (conversation, who) = (&self.conversations[0], self.actors[last].id());
        for n in 0_u32.. {
            if self.done.get() {
                break;
            }
            tokio::time::sleep(BRIEF_STAY).await;
            // 404: an earlier try succeeded, but its answer was lost.
            let path = format!("/groups/{conversation}/members/{who}");
            let (_, left) = self
                .must("DELETE", &path, Some(json!({})), &[200, 404])
                .await?;
            self.left(0, last, left);
            let is_long = n.is_multiple_of(LONG_ABSENCE_EACH);
            tokio::time::sleep(if is_long { LONG_ABSENCE } else { BRIEF_STAY }).await;
            let body = json!({ "user_ids": [who] });
            let (_, came) = self
                .must(
                    "POST",
                    &format!("/groups/{conversation}/members"),
                    Some(body),
                    DONE,
                )
                .await?;
            self.came(0, last, came);
        }
        Ok(())
    }
}
