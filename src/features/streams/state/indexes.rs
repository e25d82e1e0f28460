//! The indexes of streams. They hold nothing that a node believes: it looks at the stream itself.

use std::time::Duration;

use bytes::Bytes;

use super::{StreamState, text};
use crate::{
    features::streams::id::{StreamId, StreamKey},
    ids::{AgentId, ConversationId},
    limits::quotas::STREAM_STATE_TTL,
    redis::{Away, keys},
};

/// The life of an index after its last entry.
const INDEX_TTL: Duration = Duration::from_secs(STREAM_STATE_TTL.as_secs() + 120);
/// Time after which another node looks at a stream, if the node that took it has not.
const LOOK_LEASE: Duration = Duration::from_secs(5);
/// The streams that a node takes at once.
const MAX_DUE_STREAMS: usize = 100;
/// The streams of a name that are read, the most recent first.
const MAX_STREAMS_OF_NAME: i64 = 1_000;
/// The streams of a conversation that are read, the most recent first. Open ones are listed each
/// minute, so those that are over come after them.
const MAX_STREAMS_OF_CONVERSATION: i64 = 256;

impl StreamState {
    /// Leads to an open stream: by its name, by its conversation, and at the time `due_ms`.
    pub async fn list(&self, key: &StreamKey, conversation: ConversationId, due_ms: i64) {
        let agent = key.agent.0.simple();
        let by_name = keys::streams_by_name(key.stream.as_str());
        let by_place = keys::streams_of_conversation(conversation);
        let entry = format!("{agent}{}", conversation.0.simple());
        // A stream that is in no index is heard nonetheless, and the next look lists it.
        let (_, _, _) = tokio::join!(
            self.note(by_name, entry, due_ms),
            self.note(by_place, member(key), due_ms),
            self.set_due(key, due_ms),
        );
    }

    /// Has a stream looked at again at this time.
    pub async fn set_due(&self, key: &StreamKey, due_ms: i64) -> Result<(), Away> {
        self.note(keys::due_streams(), member(key), due_ms).await
    }

    async fn note(&self, index: String, member: String, score_ms: i64) -> Result<(), Away> {
        let kept = i64::try_from(STREAM_STATE_TTL.as_millis()).unwrap_or(i64::MAX);
        let args = vec![
            Bytes::from(member),
            text(score_ms),
            text(score_ms - kept),
            text(INDEX_TTL.as_millis()),
        ];
        let index = self.redis.key(index);
        self.redis.eval(&self.scripts.index, &[index], args).await
    }

    /// Takes some streams that are due for a look.
    pub async fn take_due(&self) -> Result<Vec<StreamKey>, Away> {
        let args = vec![
            text(self.clock.ahead().num_milliseconds()),
            text(LOOK_LEASE.as_millis()),
            text(MAX_DUE_STREAMS),
        ];
        let due = self.redis.key(keys::due_streams());
        let members: Vec<String> = self.redis.eval(&self.scripts.due, &[due], args).await?;
        Ok(members.iter().filter_map(|text| key_in(text)).collect())
    }

    /// Looks at a stream no more.
    pub async fn forget_due(&self, key: &StreamKey) {
        use fred::interfaces::SortedSetsInterface;
        let due = self.redis.key(keys::due_streams());
        let member = member(key);
        let gone = self
            .redis
            .run(async |client| client.zrem::<(), _, _>(due, member).await);
        // It is due again after its lease.
        gone.await.ok();
    }

    /// The agents that may have a stream of this name, with its conversation.
    pub async fn of_name(&self, name: &StreamId) -> Result<Vec<(StreamKey, ConversationId)>, Away> {
        let index = keys::streams_by_name(name.as_str());
        let found = self.newest(index, MAX_STREAMS_OF_NAME).await?;
        let read = |entry: &String| {
            let (agent, conversation) = entry.split_at_checked(32)?;
            let key = StreamKey {
                agent: AgentId(agent.parse().ok()?),
                stream: name.clone(),
            };
            Some((key, ConversationId(conversation.parse().ok()?)))
        };
        Ok(found.iter().filter_map(read).collect())
    }

    /// The streams that a conversation may have.
    pub async fn of_conversation(
        &self,
        conversation: ConversationId,
    ) -> Result<Vec<StreamKey>, Away> {
        let index = keys::streams_of_conversation(conversation);
        let found = self.newest(index, MAX_STREAMS_OF_CONVERSATION).await?;
        Ok(found.iter().filter_map(|text| key_in(text)).collect())
    }

    async fn newest(&self, index: String, most: i64) -> Result<Vec<String>, Away> {
        use fred::interfaces::SortedSetsInterface;
        let index = self.redis.key(index);
        let found = self
            .redis
            .run(async |client| client.zrevrange(index, 0, most - 1, false).await);
        found.await
    }
}

fn member(key: &StreamKey) -> String {
    format!("{}{}", key.agent.0.simple(), key.stream.as_str())
}

fn key_in(member: &str) -> Option<StreamKey> {
    let (agent, stream) = member.split_at_checked(32)?;
    Some(StreamKey {
        agent: AgentId(agent.parse().ok()?),
        stream: stream.parse().ok()?,
    })
}
