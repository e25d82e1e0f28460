//! The tier of an agent: its largest group decides it, as read within the last minute.

use std::time::Duration;

use moka::future::Cache;

use super::table::Limit;
use crate::{db::Db, error::Result, ids::AgentId};

/// Greatest age of a cached tier. A group that grows or shrinks changes its agents' budgets that
/// much later.
const TIER_CACHE_TTL: Duration = Duration::from_secs(60);
const TIER_CACHE_CAPACITY: u64 = 100_000;

/// The tiers of agents; clones share the cache.
#[derive(Clone)]
pub struct Tiers {
    db: Db,
    known: Cache<AgentId, Limit>,
}

impl Tiers {
    /// Starts with an empty cache.
    pub fn new(db: Db) -> Self {
        Tiers {
            db,
            known: Cache::builder()
                .max_capacity(TIER_CACHE_CAPACITY)
                .time_to_live(TIER_CACHE_TTL)
                .build(),
        }
    }

    /// The agent's tier; the first one while Postgres is away.
    pub async fn of(&self, agent: AgentId) -> Limit {
        if let Some(tier) = self.known.get(&agent).await {
            return tier;
        }
        // A failure is remembered as well. Otherwise each call of an agent whose look-up is too
        // slow would wait for it, and hold a connection meanwhile.
        let look = async {
            self.largest_group(agent)
                .await
                .map_or(Limit::AgentTier1, tier)
        };
        // Boxed, because it is large and nearly every call does without it.
        Box::pin(self.known.get_with(agent, look)).await
    }

    async fn largest_group(&self, agent: AgentId) -> Result<i64> {
        let client = self.db.read().await?;
        let stmt = client
            .prepare_cached(
                // Only groups have instances, and beyond 100 members a group is as large as any.
                "-- limits.largest_group
                select coalesce(max(members.size), 0) as largest from member g
                cross join lateral (
                    select count(*) as size from (
                        select from member m where m.conversation_id = g.conversation_id limit 101
                    ) as members
                ) as members
                where g.principal_id = $1 and g.instance_id is not null",
            )
            .await?;
        Ok(client.query_one(&stmt, &[&agent]).await?.get("largest"))
    }
}

/// The tier of an agent whose largest group has this many members.
fn tier(members: i64) -> Limit {
    match members {
        ..=10 => Limit::AgentTier1,
        11..=100 => Limit::AgentTier2,
        _ => Limit::AgentTier3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_ends_with_its_last_member() {
        for (members, limit) in [
            (0, Limit::AgentTier1),
            (10, Limit::AgentTier1),
            (11, Limit::AgentTier2),
            (100, Limit::AgentTier2),
            (101, Limit::AgentTier3),
            (500, Limit::AgentTier3),
        ] {
            assert_eq!(tier(members), limit, "{members}");
        }
    }
}
