//! Makes a history. Many clients send, read and listen concurrently, and an owner removes and adds
//! a member again and again. Nodes may die meanwhile. Most clients then repeat a send at another
//! node under its first id. Some never learn the outcome.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Heard, History, Moment, Read, Said, Send, Span, Stay, Tag};

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
    pub rooms: usize,
    /// Sends and reads, over all workers.
    pub operations: usize,
    pub workers: usize,
    pub seed: u64,
}

/// Longest silence while the last messages are still to arrive.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a repeated request.
const RETRY_DELAY: Duration = Duration::from_millis(20);
const DONE: &[u16] = &[200, 201];
/// Messages in a page of the newest.
const NEWEST: usize = 20;

struct Drive<'a, A> {
    plan: Plan,
    actors: &'a [A],
    rooms: Vec<String>,
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
        rooms: Vec::new(),
        start: Instant::now(),
        history: RefCell::default(),
        next_tag: Cell::new(0),
        done: Cell::new(false),
    };
    for n in 0..plan.rooms {
        let room = drive.open(n).await?;
        drive.rooms.push(room);
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
        for room in 0..plan.rooms {
            drive.send(0, room, 0, last_tag(room), Manner::Sure).await;
        }
        Ok::<_, String>(())
    };
    let (heard, acted) = futures_util::join!(heard, acting);
    acted?;
    let mut ends = Vec::new();
    for room in 0..plan.rooms {
        ends.push(drive.whole(room).await?);
    }
    Ok(History {
        heard,
        ends,
        ..drive.history.take()
    })
}

fn last_tag(room: usize) -> Tag {
    Tag::MAX - room as Tag
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

    fn came(&self, room: usize, principal: usize, came: Span) {
        let stay = Stay {
            conversation: room,
            principal,
            came,
            left: None,
        };
        self.history.borrow_mut().stays.push(stay);
    }

    fn left(&self, room: usize, principal: usize, left: Span) {
        let mut history = self.history.borrow_mut();
        let mut stays = history.stays.iter_mut().rev();
        if let Some(stay) =
            stays.find(|stay| stay.conversation == room && stay.principal == principal)
        {
            stay.left = Some(left);
        }
    }

    async fn open(&self, room: usize) -> Result<String, String> {
        let users = self.actors.iter().filter(|actor| !actor.is_agent());
        let ids: Vec<&str> = users.map(Actor::id).collect();
        let body = json!({ "title": format!("room {room}"), "member_ids": ids });
        let (made, span) = self.must("POST", "/groups", Some(body), DONE).await?;
        let id = made["data"]["conversation_id"]
            .as_str()
            .ok_or("no id")?
            .to_owned();
        for (principal, actor) in self
            .actors
            .iter()
            .enumerate()
            .filter(|(n, _)| self.is_in(*n, room))
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
            self.came(room, principal, came);
        }
        Ok(id)
    }

    /// Whether the principal is a member. Each conversation has a single agent, because two that
    /// answer each other soon fall silent.
    fn is_in(&self, principal: usize, room: usize) -> bool {
        !self.actors[principal].is_agent() || principal % self.plan.rooms == room
    }

    /// Runs a worker, which sends mostly and reads sometimes, as any actor and at any node.
    async fn work(&self, n: usize) {
        let seed = self
            .plan
            .seed
            .wrapping_add(n as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut chance = Chance(seed | 1);
        for _ in 0..self.plan.operations / self.plan.workers {
            let room = chance.below(self.plan.rooms);
            let mut actor = chance.below(self.actors.len());
            if !self.is_in(actor, room) {
                actor = 0;
            }
            let node = chance.below(self.plan.nodes);
            match chance.below(20) {
                0..=4 => self.read(actor, room, node).await,
                5 => {
                    self.send(actor, room, node, self.tag(), Manner::Twice)
                        .await;
                }
                6..=9 => self.send(actor, room, node, self.tag(), Manner::Once).await,
                _ => self.send(actor, room, node, self.tag(), Manner::Sure).await,
            }
        }
    }

    async fn send(&self, actor: usize, room: usize, node: usize, tag: Tag, manner: Manner) {
        let (who, id) = (&self.actors[actor], &self.rooms[room]);
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
                conversation: room,
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

    async fn read(&self, actor: usize, room: usize, node: usize) {
        let (who, id) = (&self.actors[actor], &self.rooms[room]);
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
            conversation: room,
            reader: actor,
            span,
            seen,
        });
    }

    /// Removes the last actor from the first conversation and adds it again until the workers are
    /// done.
    async fn come_and_go(&self) -> Result<(), String> {
        let last = self.actors.len() - 1;
        let (room, who) = (&self.rooms[0], self.actors[last].id());
        while !self.done.get() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            // 404: an earlier try succeeded, but its answer was lost.
            let path = format!("/groups/{room}/members/{who}");
            let (_, left) = self
                .must("DELETE", &path, Some(json!({})), &[200, 404])
                .await?;
            self.left(0, last, left);
            tokio::time::sleep(Duration::from_millis(20)).await;
            let body = json!({ "user_ids": [who] });
            let (_, came) = self
                .must("POST", &format!("/groups/{room}/members"), Some(body), DONE)
                .await?;
            self.came(0, last, came);
        }
        Ok(())
    }

    /// Records every event until the last message of each of the listener's conversations.
    async fn listen(&self, principal: usize, ears: &mut impl Subscriber) -> Vec<Heard> {
        let mut heard: Vec<Heard> = Vec::new();
        let mut waiting: Vec<usize> = (0..self.plan.rooms)
            .filter(|room| self.is_in(principal, *room))
            .collect();
        let mut heard_at = Instant::now();
        while !waiting.is_empty() && heard_at.elapsed() < TIMEOUT {
            let frame = match tokio::time::timeout(TIMEOUT, ears.next()).await {
                Ok(Some(frame)) => frame,
                _ => break,
            };
            if frame["type"] != "event" {
                continue;
            }
            heard_at = Instant::now();
            let message = (frame["event"] == "message.created")
                .then(|| self.said(&frame["data"]))
                .flatten();
            heard.push(Heard {
                number: frame["seq"].as_u64().unwrap_or_default(),
                message,
            });
            waiting.retain(|room| message.is_none_or(|said| said.tag != last_tag(*room)));
        }
        heard
    }

    fn said(&self, message: &Value) -> Option<Said> {
        let id = message["conversation_id"].as_str()?;
        let conversation = self.rooms.iter().position(|room| room == id)?;
        Some(Said {
            conversation,
            seq: message["seq"].as_u64()?,
            tag: tag_of(message)?,
        })
    }

    /// All messages of a conversation, oldest first, as its owner reads them.
    async fn whole(&self, room: usize) -> Result<Vec<(u64, Tag)>, String> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let id = &self.rooms[room];
            let path = format!("/conversations/{id}/messages?direction=forward&limit=100{cursor}");
            let (page, _) = self.must("GET", &path, None, DONE).await?;
            all.extend(seen(&page));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(all),
            }
        }
    }
}

/// The manner in which a client sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
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

fn seen(page: &Value) -> Vec<(u64, Tag)> {
    let messages = page["data"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    messages
        .iter()
        .filter_map(|message| Some((message["seq"].as_u64()?, tag_of(message)?)))
        .collect()
}

/// A small generator whose seed repeats the plan.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or_default() % most.max(1)
    }
}
