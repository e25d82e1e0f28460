//! Who hears what is said in passing: the members of a conversation, remembered for a second.
//!
//! What is remembered is forgotten as soon as a node tells, or hears, that somebody was removed. Where that hint does
//! not come, whoever was removed may hear ephemeral frames for that second longer, and no event at all: events are
//! written under the conversation's lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use moka::future::Cache;
use uuid::Uuid;

use crate::{
    db::Db,
    error::{Code, Error, Result},
    events::{self, EncodedEvent},
    ids::{ConversationId, Principal},
};

/// How long a list is believed.
const AUDIENCE_CACHE_TTL: Duration = Duration::from_secs(1);
/// Lists remembered.
const AUDIENCE_CACHE_CAPACITY: u64 = 10_000;

/// A member.
struct Member {
    id: Uuid,
    /// An agent whose user has ended the relation: still a member, and neither heard nor told.
    apart: bool,
    /// False for an agent that hears only what names it.
    told: bool,
}

/// The members of conversations; clones share the memory.
#[derive(Clone)]
pub struct Audience {
    db: Db,
    /// By what had changed when they were read: an older list, also one that is still being read, is not found again.
    lists: Cache<(ConversationId, u64), Arc<[Member]>>,
    changes: Arc<AtomicU64>,
}

impl Audience {
    /// Nothing remembered yet.
    pub fn new(db: Db) -> Self {
        let lists = Cache::builder()
            .max_capacity(AUDIENCE_CACHE_CAPACITY)
            .time_to_live(AUDIENCE_CACHE_TTL)
            .build();
        Audience {
            db,
            lists,
            changes: Arc::default(),
        }
    }

    /// Forgets all lists if this event says that one has become shorter.
    pub fn note(&self, encoded: &EncodedEvent) {
        if events::shrinks_audience(encoded) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    async fn of(&self, conversation: ConversationId) -> Result<Arc<[Member]>> {
        // Concurrent callers share one look.
        let key = (conversation, self.changes.load(Ordering::Acquire));
        if let Some(list) = self.lists.get(&key).await {
            return Ok(list);
        }
        // Boxed, because it is large, and every send and socket would carry it along.
        let list = Box::pin(self.lists.try_get_with(key, self.load(conversation)));
        list.await.map_err(|error: Arc<Error>| match error.code() {
            Code::ServiceUnavailable => Error::unavailable(format!("{error:?}")),
            code => code.into(),
        })
    }

    async fn load(&self, conversation: ConversationId) -> Result<Arc<[Member]>> {
        let client = self.db.read().await?;
        let rows = client
            .query(
                "-- gateway.audience
                select m.principal_id, coalesce(r.state = 'revoked', false), m.visibility = 'all'
                from member m left join relation r on r.relation_id = m.relation_id
                where m.conversation_id = $1",
                &[&conversation],
            )
            .await?;
        Ok(rows
            .iter()
            .map(|row| Member {
                id: row.get(0),
                apart: row.get(1),
                told: row.get(2),
            })
            .collect())
    }

    /// Everybody who is told what `speaker` says: the members, for a user with its other sockets, for an agent without
    /// itself. Whoever is no member may not speak (`stranger`).
    pub async fn of_speaker(
        &self,
        speaker: Principal,
        conversation: ConversationId,
        stranger: Code,
    ) -> Result<Vec<Uuid>> {
        let members = self.of(conversation).await?;
        let me = members
            .iter()
            .find(|member| member.id == speaker.id())
            .ok_or(stranger)?;
        if me.apart {
            return Err(Code::RelationRevoked.into());
        }
        let silent = matches!(speaker, Principal::Agent(_)).then(|| speaker.id());
        Ok(told(&members).filter(|id| Some(*id) != silent).collect())
    }

    /// Everybody who is told what happens there.
    pub async fn all(&self, conversation: ConversationId) -> Result<Vec<Uuid>> {
        Ok(told(&self.of(conversation).await?).collect())
    }

    /// Whether `listener` is told what happens there.
    pub async fn includes(&self, listener: Uuid, conversation: ConversationId) -> Result<bool> {
        Ok(told(&self.of(conversation).await?).any(|id| id == listener))
    }
}

fn told(members: &[Member]) -> impl Iterator<Item = Uuid> {
    members
        .iter()
        .filter(|member| member.told && !member.apart)
        .map(|member| member.id)
}
