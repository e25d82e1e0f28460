//! The state of streams, in Redis. Any node goes on with a stream, replays it or ends it.
//!
//! All streams of an agent share a key, which holds their byte budget and its own expiry
//! (`streams.lua`). Three indexes lead to streams: by name, by conversation, and by the time at
//! which a stream is due for a look. The nodes assert them at the begin of a stream and with each
//! look. Redis may lose everything: the agent's client then begins its streams again.

mod indexes;
mod mac;

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::time::Timestamp;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::mac::{Part, StateMac};
use super::id::{StreamId, StreamKey, StreamTarget};
use crate::{
    auth::server_secret::ServerSecret,
    clock::Clock,
    ids::{AgentId, ConversationId, MessageId},
    limits::quotas::{
        MAX_OPEN_STREAMS, MAX_STREAM_BACKLOG_DELTAS, MAX_STREAM_DELTAS_PER_SECOND,
        MAX_STREAM_STATE_BYTES, STREAM_CHECKPOINT_INTERVAL, STREAM_IDLE_TIMEOUT, STREAM_STATE_TTL,
    },
    redis::{Away, Redis, Script, keys},
};

/// The most streams of an agent that are kept, ended ones included. Beyond that its oldest ended
/// stream is forgotten early.
const MAX_KEPT_STREAMS: usize = 64;

/// The identity of a stream from its begin to its end, over all its generations.
pub type Life = Arc<str>;

/// The purpose of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Home {
    pub conversation: ConversationId,
    pub in_reply_to: Option<MessageId>,
    pub generation: u32,
    /// When its first generation began.
    pub started_at: Timestamp,
}

impl Home {
    pub fn target(&self) -> StreamTarget {
        StreamTarget {
            conversation: self.conversation,
            in_reply_to: self.in_reply_to,
        }
    }
}

/// How a stream has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It has become a message.
    Message(MessageId),
    /// It was cancelled, with the reason for its listeners.
    Cancelled(Option<String>),
}

/// A stream as Redis knows it.
pub struct StreamRecord {
    pub life: Life,
    pub home: Home,
    /// The number of the next delta.
    pub next: u64,
    /// The time of its last sign, in ms of Redis's clock.
    pub sign_ms: i64,
    pub ending: Option<Ending>,
    /// Whether it has begun again, and its client has not said yet where the text stands.
    pub is_waiting: bool,
}

/// The kept content of a stream: texts of frames for its listeners.
pub struct Content {
    pub known: StreamRecord,
    pub checkpoint: Option<String>,
    pub deltas: Vec<String>,
    pub status: Option<String>,
}

/// A sign of a stream, with the frame that its listeners get, or that a listener gets who asks.
pub enum Sign<'a> {
    Delta(u64, &'a str),
    /// The text up to this delta.
    Checkpoint(u64, &'a str),
    /// It counts among the deltas of a second.
    Status(&'a str),
    KeepAlive,
}

/// The answer to a sign of a stream.
pub enum Verdict {
    Taken,
    /// It is not open, or it has begun anew.
    Unknown,
    /// Another number is next.
    Order(u64),
    /// The stream may go on after this time.
    Wait(Duration),
    /// The agent's budget of bytes is used up.
    Full,
}

/// The answer to an end.
#[derive(PartialEq, Eq)]
pub enum CloseResult {
    Now,
    Before,
    Unknown,
}

/// The outcome of a look at a stream.
pub enum Look {
    /// It is silent for too long, and has ended with this look.
    Idle(Home),
    /// It is due again at this time. A stream that is over has no home.
    Later(i64, Option<Home>),
    Gone,
}

/// The state of all streams. Clones share the connection.
#[derive(Clone)]
pub struct StreamState {
    redis: Redis,
    clock: Clock,
    mac: StateMac,
    scripts: Arc<Scripts>,
}

struct Scripts {
    streams: Script,
    index: Script,
    due: Script,
}

impl StreamState {
    pub fn new(redis: Redis, clock: Clock, secret: &ServerSecret) -> Self {
        StreamState {
            redis,
            clock,
            mac: StateMac::new(secret),
            scripts: Arc::new(Scripts {
                streams: Script::new(include_str!("streams.lua")),
                index: Script::new(include_str!("index.lua")),
                due: Script::new(include_str!("due.lua")),
            }),
        }
    }

    /// The stream, if Redis knows it, and the time of Redis's clock in ms.
    pub async fn load(&self, key: &StreamKey) -> Result<(i64, Option<StreamRecord>), Away> {
        let answer = self.call("load", key, Vec::new()).await?;
        let now = answer.first().and_then(number).ok_or(Away)?;
        Ok((now, self.known(key, &answer)))
    }

    /// Begins a stream, or begins it again. `before` is the stream as it was loaded, and `stays`
    /// says whether its content stays. False if it has changed meanwhile; none if too many are
    /// open.
    pub async fn begin(
        &self,
        key: &StreamKey,
        before: Option<&StreamRecord>,
        life: &Life,
        home: &Home,
        stays: bool,
    ) -> Result<Option<bool>, Away> {
        let found = before.map_or(String::new(), |known| {
            let is_over = u8::from(known.ending.is_some());
            format!("{} {} {is_over}", known.life, known.home.generation)
        });
        let signed = serde_json::to_string(home).unwrap_or_default();
        let answered = home.in_reply_to.map(|id| id.to_string());
        let args = vec![
            found.into(),
            Bytes::from(life.to_string()),
            self.mac.sign(key, life, Part::Home, &signed),
            home.conversation.to_string().into(),
            answered.unwrap_or_default().into(),
            text(home.generation),
            if stays { "1" } else { "" }.into(),
            text(MAX_OPEN_STREAMS),
            text(MAX_KEPT_STREAMS),
        ];
        let answer = self.call("begin", key, args).await?;
        Ok(match answer.first().map(|word| &word[..]) {
            Some(b"ok") => Some(true),
            Some(b"changed") => Some(false),
            Some(b"open") => None,
            _ => return Err(Away),
        })
    }

    /// Gives a sign of the life `life` of a stream.
    pub async fn sign(
        &self,
        key: &StreamKey,
        life: &Life,
        sign: &Sign<'_>,
    ) -> Result<Verdict, Away> {
        let mut args = vec![Bytes::from(life.to_string())];
        let rate = || text(MAX_STREAM_DELTAS_PER_SECOND);
        let max_bytes = || text(MAX_STREAM_STATE_BYTES);
        let operation = match sign {
            Sign::Delta(n, frame) => {
                args.extend([
                    self.mac.sign(key, life, Part::Delta(*n), frame),
                    text(n),
                    rate(),
                    text(MAX_STREAM_BACKLOG_DELTAS),
                    max_bytes(),
                ]);
                "delta"
            }
            Sign::Checkpoint(n, frame) => {
                args.extend([
                    self.mac.sign(key, life, Part::Checkpoint, frame),
                    text(n),
                    text(STREAM_CHECKPOINT_INTERVAL.as_millis()),
                    max_bytes(),
                ]);
                "checkpoint"
            }
            Sign::Status(frame) => {
                let signed = self.mac.sign(key, life, Part::Status, frame);
                args.extend([signed, rate(), max_bytes()]);
                "status"
            }
            Sign::KeepAlive => "keepalive",
        };
        let answer = self.call(operation, key, args).await?;
        let second = || answer.get(1).and_then(number).ok_or(Away);
        Ok(match answer.first().map(|word| &word[..]) {
            Some(b"ok") => Verdict::Taken,
            Some(b"unknown") => Verdict::Unknown,
            Some(b"order") => Verdict::Order(second()?.try_into().map_err(|_| Away)?),
            Some(b"rate") => Verdict::Wait(millis(second()?)),
            Some(b"full") => Verdict::Full,
            _ => return Err(Away),
        })
    }

    /// Ends an open stream of a conversation. A stream that has become a message loses its content.
    pub async fn close(
        &self,
        key: &StreamKey,
        conversation: ConversationId,
        ending: &Ending,
    ) -> Result<CloseResult, Away> {
        let goes = matches!(ending, Ending::Message(_));
        let args = vec![
            Bytes::new(),
            conversation.to_string().into(),
            self.sign_end(key.agent, ending),
            if goes { "1" } else { "" }.into(),
        ];
        let answer = self.call("close", key, args).await?;
        Ok(match answer.first().map(|word| &word[..]) {
            Some(b"ok") => CloseResult::Now,
            Some(b"over") => CloseResult::Before,
            Some(b"unknown") => CloseResult::Unknown,
            _ => return Err(Away),
        })
    }

    /// Ends the open streams of an agent in a conversation, and returns them. With `in_reply_to`, a
    /// stream that answers another message goes on.
    pub async fn stop(
        &self,
        agent: AgentId,
        conversation: ConversationId,
        in_reply_to: Option<MessageId>,
        ending: &Ending,
    ) -> Result<Vec<StreamKey>, Away> {
        let answered = in_reply_to.map(|id| id.to_string());
        let args = vec![
            conversation.to_string().into(),
            answered.unwrap_or_default().into(),
            self.sign_end(agent, ending),
        ];
        let names = self.ask("stop", agent, "", args).await?;
        let names = names.iter().filter_map(|name| named(name));
        Ok(names.map(|stream| StreamKey { agent, stream }).collect())
    }

    /// Looks whether a stream is silent for too long, and ends it if so. Of many nodes that look,
    /// one ends it.
    pub async fn look(&self, key: &StreamKey, ending: &Ending) -> Result<Look, Away> {
        let args = vec![
            text(STREAM_IDLE_TIMEOUT.as_millis()),
            self.sign_end(key.agent, ending),
        ];
        let answer = self.call("idle", key, args).await?;
        let home = || {
            let life = std::str::from_utf8(answer.get(2)?).ok()?;
            self.home(key, life, answer.get(3)?)
        };
        let until = || answer.get(1).and_then(number).ok_or(Away);
        Ok(match answer.first().map(|word| &word[..]) {
            Some(b"gone") => Look::Gone,
            Some(b"wait") => {
                let is_open = answer.get(4).is_some_and(Bytes::is_empty);
                Look::Later(until()?, home().filter(|_| is_open))
            }
            Some(b"idle") => home().map_or(Look::Gone, Look::Idle),
            _ => return Err(Away),
        })
    }

    /// The kept content from delta `from` on; without it, the newest checkpoint and what follows.
    pub async fn content(
        &self,
        key: &StreamKey,
        from: Option<u64>,
    ) -> Result<Option<Content>, Away> {
        let answer = self
            .call("replay", key, vec![from.map_or(Bytes::new(), text)])
            .await?;
        let Some(known) = self.known(key, &answer) else {
            return Ok(None);
        };
        let [first, checkpoint, status, deltas @ ..] = answer.get(7..).unwrap_or_default() else {
            return Err(Away);
        };
        let open = |part, signed: &Bytes| self.mac.verify(key, &known.life, part, signed);
        let first = number(first)
            .and_then(|n| u64::try_from(n).ok())
            .ok_or(Away)?;
        let deltas = (first..).zip(deltas);
        Ok(Some(Content {
            checkpoint: open(Part::Checkpoint, checkpoint),
            deltas: deltas
                .filter_map(|(n, signed)| open(Part::Delta(n), signed))
                .collect(),
            status: open(Part::Status, status),
            known,
        }))
    }

    /// Reads the description of a stream, if a node signed its home.
    fn known(&self, key: &StreamKey, answer: &[Bytes]) -> Option<StreamRecord> {
        let [_, life, home, next, sign, ending, waiting, ..] = answer else {
            return None;
        };
        let life = std::str::from_utf8(life).ok()?;
        let ending = match ending.is_empty() {
            true => None,
            false => {
                let text = self.mac.verify_end(key.agent, ending)?;
                Some(serde_json::from_str(&text).ok()?)
            }
        };
        Some(StreamRecord {
            life: life.into(),
            home: self.home(key, life, home)?,
            next: number(next)?.try_into().ok()?,
            sign_ms: number(sign)?,
            ending,
            is_waiting: !waiting.is_empty(),
        })
    }

    fn home(&self, key: &StreamKey, life: &str, signed: &[u8]) -> Option<Home> {
        let text = self.mac.verify(key, life, Part::Home, signed)?;
        serde_json::from_str(&text).ok()
    }

    fn sign_end(&self, agent: AgentId, ending: &Ending) -> Bytes {
        let text = serde_json::to_string(ending).unwrap_or_default();
        self.mac.sign_end(agent, &text)
    }

    async fn call(
        &self,
        operation: &'static str,
        key: &StreamKey,
        rest: Vec<Bytes>,
    ) -> Result<Vec<Bytes>, Away> {
        self.ask(operation, key.agent, key.stream.as_str(), rest)
            .await
    }

    async fn ask(
        &self,
        operation: &'static str,
        agent: AgentId,
        stream: &str,
        rest: Vec<Bytes>,
    ) -> Result<Vec<Bytes>, Away> {
        let mut args = vec![
            operation.into(),
            text(self.clock.ahead().num_milliseconds()),
            text(STREAM_STATE_TTL.as_millis()),
            Bytes::from(stream.to_owned()),
        ];
        args.extend(rest);
        let place = self.redis.key(keys::streams(agent));
        self.redis.eval(&self.scripts.streams, &[place], args).await
    }
}

fn text(number: impl ToString) -> Bytes {
    number.to_string().into()
}

fn number(text: &Bytes) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn named(text: &[u8]) -> Option<StreamId> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}
