//! The begin of streams, and what a node remembers of the streams that its sockets use.

use std::{sync::Arc, time::Duration};

use blindpipe_protocol::{frames::ServerFrame, streams::StreamBegin};
use chrono::{DateTime, Utc};
use moka::sync::Cache;
use parking_lot::Mutex;

use super::{
    HeardStreams, StreamState, Streams, away,
    frames::{encode, sender},
    id::{StreamKey, StreamTarget},
    position::StreamAction,
    state::{Ending, Home, Life, StreamRecord},
};
use crate::{
    clock::Clock,
    delivery::Backplane,
    error::{Code, Error, Result},
    features::conversations::Audience,
    limits::quotas::{
        MAX_OPEN_STREAMS, STREAM_CHECKPOINT_INTERVAL, STREAM_IDLE_TIMEOUT, STREAM_STATE_TTL,
    },
    random::Random,
};

/// The open streams that a node remembers.
const OPEN_STREAM_CAPACITY: u64 = 20_000;
/// How often a begin is tried that meets another one of the same stream.
const MAX_BEGIN_TRIES: usize = 3;

/// An open stream, as this node last knew it.
pub(super) struct OpenStream {
    pub life: Life,
    pub target: StreamTarget,
    checkpoint_at: Mutex<Option<DateTime<Utc>>>,
}

impl OpenStream {
    fn new(life: Life, target: StreamTarget) -> Self {
        OpenStream {
            life,
            target,
            checkpoint_at: Mutex::default(),
        }
    }

    /// The time until the stream may have another checkpoint; none if it may now.
    pub fn checkpoint_wait(&self, now: DateTime<Utc>) -> Option<Duration> {
        let last = (*self.checkpoint_at.lock())?;
        let wait = (last + STREAM_CHECKPOINT_INTERVAL - now).to_std().ok()?;
        (!wait.is_zero()).then_some(wait.min(STREAM_CHECKPOINT_INTERVAL))
    }

    pub fn note_checkpoint(&self, at: DateTime<Utc>) {
        *self.checkpoint_at.lock() = Some(at);
    }
}

impl Streams {
    /// The streams, without any task.
    pub fn new(
        clock: &Clock,
        random: &Random,
        state: StreamState,
        heard: HeardStreams,
        audience: Audience,
        backplane: &Backplane,
    ) -> Self {
        Streams {
            clock: clock.clone(),
            random: random.clone(),
            state,
            heard,
            audience,
            backplane: backplane.clone(),
            open: Cache::builder()
                .max_capacity(OPEN_STREAM_CAPACITY)
                .time_to_idle(STREAM_STATE_TTL)
                .build(),
        }
    }

    /// An open stream, out of memory or out of Redis.
    pub(super) async fn open(&self, key: &StreamKey) -> Result<Arc<OpenStream>> {
        if let Some(open) = self.open.get(key) {
            return Ok(open);
        }
        let (_, known) = self.state.load(key).await.map_err(away)?;
        let known = known.filter(|known| known.ending.is_none());
        let known = known.ok_or(Code::NotFound)?;
        let open = Arc::new(OpenStream::new(known.life.clone(), known.home.target()));
        self.open.insert(key.clone(), open.clone());
        Ok(open)
    }

    pub(super) async fn begin(
        &self,
        key: &StreamKey,
        target: StreamTarget,
        generation: u32,
    ) -> Result<()> {
        let listeners = self.listeners(key, target.conversation).await?;
        for _ in 0..MAX_BEGIN_TRIES {
            let (now_ms, before) = self.state.load(key).await.map_err(away)?;
            let (life, home, stays) =
                self.next_life(target, generation, before.as_ref(), now_ms)?;
            let begun = self
                .state
                .begin(key, before.as_ref(), &life, &home, stays)
                .await;
            match begun.map_err(away)? {
                Some(true) => {}
                // Another begin, or an end, came in between.
                Some(false) => continue,
                None => {
                    let limit = format!("{MAX_OPEN_STREAMS} open");
                    let wait = STREAM_IDLE_TIMEOUT;
                    return Err(Error::too_many(limit, "agent_stream_delta", wait));
                }
            }
            let idle = i64::try_from(STREAM_IDLE_TIMEOUT.as_millis()).unwrap_or_default();
            // Before its listeners hear of it: they may ask for it at once.
            self.state
                .list(key, target.conversation, now_ms + idle)
                .await;
            let open = Arc::new(OpenStream::new(life, target));
            self.open.insert(key.clone(), open);
            let text = encode(&ServerFrame::StreamBegin(StreamBegin {
                stream_id: key.stream.clone(),
                conversation_id: target.conversation,
                in_reply_to: target.in_reply_to,
                generation,
                sender: sender(key),
            }));
            let begun = StreamAction::Begun;
            self.publish_frame(&listeners, key, target.conversation, begun, text);
            return Ok(());
        }
        Err(Error::full())
    }

    /// The life and the home of a stream that begins, and whether its content stays. It stays where
    /// a later generation goes on.
    fn next_life(
        &self,
        target: StreamTarget,
        generation: u32,
        before: Option<&StreamRecord>,
        now_ms: i64,
    ) -> Result<(Life, Home, bool)> {
        let StreamTarget {
            conversation,
            in_reply_to,
        } = target;
        if let Some(before) = before.filter(|before| before.ending.is_none()) {
            let current = before.home.generation;
            if generation < current {
                let expected = format!("the stream is in generation {current}");
                return Err(Error::field("generation", "order", &expected));
            }
        }
        let continued = before.filter(|before| {
            let became_message = matches!(before.ending, Some(Ending::Message(_)));
            generation > before.home.generation
                && before.home.conversation == conversation
                && !became_message
        });
        let started_at = match continued {
            Some(before) => before.home.started_at,
            None => DateTime::from_timestamp_millis(now_ms)
                .unwrap_or_else(|| self.clock.now())
                .into(),
        };
        let home = Home {
            conversation,
            in_reply_to,
            generation,
            started_at,
        };
        let life = continued.map_or_else(
            || base16ct::lower::encode_string(&self.random.bytes::<8>()).into(),
            |before| before.life.clone(),
        );
        Ok((life, home, continued.is_some()))
    }
}
