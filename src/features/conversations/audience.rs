//! The recipients of ephemeral events: the members of a conversation, cached for a second.
//!
//! A node drops the cache when it commits a removal or receives the event of one. If that hint is
//! lost, the removed member may get ephemeral frames for that second. It gets no event: events are
//! written under the conversation's lock.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use moka::future::Cache;

use crate::{
    db::Db,
    error::{Code, Error, Result},
    events::{self, EncodedEvent},
    ids::{ConversationId, Principal, PrincipalId},
};

/// The lifetime of a cached list.
const AUDIENCE_CACHE_TTL: Duration = Duration::from_secs(1);
/// The number of cached lists.
const AUDIENCE_CACHE_CAPACITY: u64 = 10_000;

/// A member, as the cache holds it.
struct Member {
    id: PrincipalId,
    /// True for an agent whose relation with the user has ended. It stays a member, but neither
    /// sends nor receives.
    detached: bool,
    /// False for an agent that only receives messages that name it.
    hears_all: bool,
}

/// The members of conversations. Clones share the cache.
#[derive(Clone)]
pub struct Audience {
    db: Db,
    /// By conversation and number of changes at the read. A change hides older lists, and those
    /// that are still being read.
    lists: Cache<(ConversationId, u64), Arc<[Member]>>,
    changes: Arc<AtomicU64>,
}

impl Audience {
    /// An empty cache.
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

    /// Drops all lists if this event removes a member.
    pub fn note(&self, encoded: &EncodedEvent) {
        if events::shrinks_audience(encoded) {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    async fn of(&self, conversation: ConversationId) -> Result<Arc<[Member]>> {
        // Concurrent callers share one read.
        let key = (conversation, self.changes.load(Ordering::Acquire));
        if let Some(list) = self.lists.get(&key).await {
            return Ok(list);
        }
        // The future is boxed: it is large, and every send and socket would carry it along.
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
                "-- conversations.audience
                select m.principal_id, coalesce(r.state = 'revoked', false) as is_detached,
                       m.visibility = 'all' as hears_all
                from member m left join relation r on r.relation_id = m.relation_id
                where m.conversation_id = $1",
                &[&conversation],
            )
            .await?;
        Ok(rows
            .iter()
            .map(|row| Member {
                id: row.get("principal_id"),
                detached: row.get("is_detached"),
                hears_all: row.get("hears_all"),
            })
            .collect())
    }

    /// The recipients of what `speaker` publishes: all members except a speaking agent. A speaking
    /// user stays a recipient, for its other sockets. Only a member may publish; the caller chooses
    /// the error for others (`not_member`).
    pub async fn of_speaker(
        &self,
        speaker: Principal,
        conversation: ConversationId,
        not_member: Code,
    ) -> Result<Vec<PrincipalId>> {
        let members = self.of(conversation).await?;
        let me = members
            .iter()
            .find(|member| member.id == speaker.id())
            .ok_or(not_member)?;
        if me.detached {
            return Err(Code::RelationRevoked.into());
        }
        let excluded = matches!(speaker, Principal::Agent(_)).then(|| speaker.id());
        Ok(recipients(&members)
            .filter(|id| Some(*id) != excluded)
            .collect())
    }

    /// All recipients of a conversation's ephemeral events.
    pub async fn all(&self, conversation: ConversationId) -> Result<Vec<PrincipalId>> {
        Ok(recipients(&self.of(conversation).await?).collect())
    }

    /// Whether `listener` is a recipient of the conversation's ephemeral events.
    pub async fn includes(
        &self,
        listener: PrincipalId,
        conversation: ConversationId,
    ) -> Result<bool> {
        Ok(recipients(&self.of(conversation).await?).any(|id| id == listener))
    }

    /// Those of `conversations` whose ephemeral events `listener` receives, by a single statement
    /// however many there are.
    pub async fn of_listener(
        &self,
        listener: PrincipalId,
        conversations: &[ConversationId],
    ) -> Result<HashSet<ConversationId>> {
        let client = self.db.read().await?;
        let rows = client
            .query(
                "-- conversations.heard
                select m.conversation_id
                from member m left join relation r on r.relation_id = m.relation_id
                where m.principal_id = $1 and m.conversation_id = any($2)
                  and m.visibility = 'all' and coalesce(r.state <> 'revoked', true)",
                &[&listener, &conversations],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get("conversation_id")).collect())
    }
}

fn recipients(members: &[Member]) -> impl Iterator<Item = PrincipalId> {
    members
        .iter()
        .filter(|member| member.hears_all && !member.detached)
        .map(|member| member.id)
}
