//! The directory: which nodes serve which principals. It is in Redis, so it may be wrong or gone.
//! An entry too many costs a message that nobody takes. A missing one costs the time of a sweep.
//!
//! A node leases its entries, and asserts each once a minute. A node that died is in them until its
//! leases end.
//!
//! Why: ADR 67.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::try_join_all;

use crate::{
    ids::{NodeId, PrincipalId},
    redis::{Away, Redis, Script, keys},
};

/// Life of an entry without an assertion.
const ENTRY_LEASE: Duration = Duration::from_secs(180);
/// The principal of the entry that names the nodes which deliver webhooks. No inbox has this id.
pub(super) const WEBHOOK_WORKERS: PrincipalId = PrincipalId::NIL;
/// Most entries in a call, which Redis answers in a fraction of a millisecond.
const MAX_CALL_ENTRIES: usize = 256;

/// The directory as a node uses it. Clones share the connection.
#[derive(Clone)]
pub struct Directory {
    node: NodeId,
    redis: Redis,
    script: Arc<Script>,
}

impl Directory {
    /// The directory for `node`.
    pub fn new(node: NodeId, redis: Redis) -> Self {
        let script = Arc::new(Script::new(include_str!("directory.lua")));
        Directory {
            node,
            redis,
            script,
        }
    }

    /// Leases entries of this node; returns the principals that had none.
    pub async fn join(&self, principals: &[PrincipalId]) -> Result<Vec<PrincipalId>, Away> {
        let answers = self.call("join", principals).await?;
        let missing = answers
            .iter()
            .flat_map(|(piece, answer)| answer.iter().filter_map(move |index| at(piece, index)));
        Ok(missing.collect())
    }

    /// Ends entries of this node.
    pub async fn leave(&self, principals: &[PrincipalId]) -> Result<(), Away> {
        self.call("leave", principals).await.map(drop)
    }

    /// The other nodes that serve some of `principals`, by principal.
    pub async fn find(
        &self,
        principals: &[PrincipalId],
    ) -> Result<HashMap<PrincipalId, Vec<NodeId>>, Away> {
        let mut nodes: HashMap<PrincipalId, Vec<NodeId>> = HashMap::new();
        for (piece, answer) in self.call("find", principals).await? {
            let (pairs, _) = answer.as_chunks::<2>();
            for [node, indices] in pairs {
                let Ok(node) = node.parse::<NodeId>() else {
                    continue;
                };
                for principal in indices.split(' ').filter_map(|index| at(&piece, index)) {
                    nodes.entry(principal).or_default().push(node);
                }
            }
        }
        Ok(nodes)
    }

    async fn call(
        &self,
        operation: &str,
        principals: &[PrincipalId],
    ) -> Result<Vec<(Vec<PrincipalId>, Vec<String>)>, Away> {
        let calls = self.pieces(principals).into_iter().map(async |piece| {
            let names: Vec<String> = piece
                .iter()
                .map(|principal| self.redis.key(keys::directory_entry(*principal)))
                .collect();
            let args = vec![
                operation.to_owned(),
                self.node.to_string(),
                ENTRY_LEASE.as_millis().to_string(),
            ];
            let answer = self.redis.eval(&self.script, &names, args).await?;
            Ok((piece, answer))
        });
        try_join_all(calls).await
    }

    /// Pieces that a call takes. A cluster of Redis runs a script on keys of a single hash slot.
    fn pieces(&self, principals: &[PrincipalId]) -> Vec<Vec<PrincipalId>> {
        let is_clustered = self.redis.is_clustered();
        let mut slots: HashMap<u8, Vec<PrincipalId>> = HashMap::new();
        for principal in principals {
            let slot = keys::directory_slot(*principal);
            let slot = if is_clustered { slot } else { 0 };
            slots.entry(slot).or_default().push(*principal);
        }
        let pieces = slots
            .values()
            .flat_map(|slot| slot.chunks(MAX_CALL_ENTRIES));
        pieces.map(<[PrincipalId]>::to_vec).collect()
    }
}

/// The principal with an index of the script, which counts from 1.
fn at(piece: &[PrincipalId], index: &str) -> Option<PrincipalId> {
    let index: usize = index.parse().ok()?;
    piece.get(index.checked_sub(1)?).copied()
}
