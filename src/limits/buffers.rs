//! The bytes that a node holds for others: answers under way, pages, mailboxes and messages that
//! arrive. A client that does not read would otherwise keep as many as it likes.
//!
//! The node has one budget, and each owner (a principal, or an address without one) has an eighth
//! of it. Small pieces are not counted: [`FREE_BYTES`] says where counting begins.
//!
//! Why: ADR 26.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;

use super::quotas::MB;
use crate::{error::Error, ids::PrincipalId, metrics};

/// The part of the budget that one owner may hold.
const OWNER_SHARE: usize = 8;
/// Least budget of an owner: two of the largest pages.
const MIN_OWNER_BYTES: usize = 8 * MB;
/// Answers and bodies up to this size are not counted.
pub const FREE_BYTES: usize = 16 * 1024;

/// The owner of held bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Principal(PrincipalId),
    /// The address of an unauthenticated caller, the first half of it for IPv6.
    Address(IpAddr),
}

/// The byte budget of a node. Clones share it.
#[derive(Clone)]
pub struct ByteBudget(Arc<Inner>);

struct Inner {
    max: usize,
    max_per_owner: usize,
    held: Mutex<HeldBytes>,
}

#[derive(Default)]
struct HeldBytes {
    total: usize,
    owners: HashMap<Owner, usize>,
}

/// Why there are no bytes left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetExhausted {
    Node,
    /// The most that an owner may hold.
    Owner(usize),
}

impl From<BudgetExhausted> for Error {
    fn from(exhausted: BudgetExhausted) -> Self {
        match exhausted {
            BudgetExhausted::Node => Error::unavailable("the node holds as many bytes as it may"),
            BudgetExhausted::Owner(max) => Error::too_many(
                format!("{max} bytes at once"),
                "held_bytes",
                Duration::from_secs(1),
            ),
        }
    }
}

impl ByteBudget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        ByteBudget(Arc::new(Inner {
            max,
            max_per_owner: (max / OWNER_SHARE).max(MIN_OWNER_BYTES).min(max),
            held: Mutex::default(),
        }))
    }

    /// Takes bytes for `owner` until the permit is dropped.
    pub fn take(&self, owner: Owner, bytes: usize) -> Result<BytePermit, BudgetExhausted> {
        let mut permit = BytePermit {
            budget: self.clone(),
            owner,
            bytes: 0,
        };
        permit.grow(bytes)?;
        Ok(permit)
    }

    fn add(&self, owner: Owner, bytes: usize) -> Result<(), BudgetExhausted> {
        let mut held = self.0.held.lock();
        let total = held.total + bytes;
        let own = held.owners.get(&owner).copied().unwrap_or_default() + bytes;
        let exhausted = if own > self.0.max_per_owner {
            Some(BudgetExhausted::Owner(self.0.max_per_owner))
        } else {
            (total > self.0.max).then_some(BudgetExhausted::Node)
        };
        if let Some(exhausted) = exhausted {
            metrics::buffers_refused(match exhausted {
                BudgetExhausted::Node => "node",
                BudgetExhausted::Owner(_) => "owner",
            });
            return Err(exhausted);
        }
        held.total = total;
        held.owners.insert(owner, own);
        metrics::buffered(total);
        Ok(())
    }

    fn release(&self, owner: Owner, bytes: usize) {
        let mut held = self.0.held.lock();
        held.total -= bytes;
        if let Some(own) = held.owners.get_mut(&owner) {
            *own -= bytes;
            if *own == 0 {
                held.owners.remove(&owner);
            }
        }
        metrics::buffered(held.total);
    }
}

/// Bytes of a [`ByteBudget`], given back when it is dropped.
pub struct BytePermit {
    budget: ByteBudget,
    owner: Owner,
    bytes: usize,
}

impl BytePermit {
    /// Takes more bytes.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        self.budget.add(self.owner, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// A permit of its own for some of these bytes; at most for all.
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        BytePermit {
            budget: self.budget.clone(),
            owner: self.owner,
            bytes,
        }
    }

    /// The bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `bytes`, which hold the permit until the last part of them is dropped.
    pub fn guard(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(PermittedBytes {
            bytes,
            permit: self,
        })
    }
}

impl Drop for BytePermit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.owner, self.bytes);
        }
    }
}

struct PermittedBytes {
    bytes: Bytes,
    #[expect(dead_code, reason = "held, not read")]
    permit: BytePermit,
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The account of a request: the budget, and the owner as far as it is known. The listener attaches
/// it to each request. Clones share the owner.
#[derive(Clone)]
pub struct ByteAccount {
    budget: ByteBudget,
    owner: Arc<Mutex<Owner>>,
}

impl ByteAccount {
    /// An account of the other end of a connection.
    pub fn new(budget: ByteBudget, peer: IpAddr) -> Self {
        ByteAccount {
            budget,
            owner: Arc::new(Mutex::new(Owner::Address(peer))),
        }
    }

    /// Names the owner. A principal is not replaced by an address.
    pub fn set_owner(&self, owner: Owner) {
        let mut known = self.owner.lock();
        if matches!(owner, Owner::Principal(_)) || matches!(*known, Owner::Address(_)) {
            *known = owner;
        }
    }

    /// Refuses an owner that has no room for so many bytes, before work is done for them.
    pub fn require(&self, bytes: usize) -> Result<(), BudgetExhausted> {
        self.take(bytes).map(drop)
    }

    /// Takes bytes for the owner.
    pub fn take(&self, bytes: usize) -> Result<BytePermit, BudgetExhausted> {
        let owner = *self.owner.lock();
        self.budget.take(owner, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_with_the_last_part_of_them() {
        let (one, two) = (
            Owner::Principal(PrincipalId::from_bytes([1; 16])),
            Owner::Principal(PrincipalId::from_bytes([2; 16])),
        );
        let budget = ByteBudget::new(10 * MB);
        let permit = budget.take(one, 8 * MB).expect("an owner's share");
        let refused = BudgetExhausted::Owner(8 * MB);
        assert_eq!(budget.take(one, 1).err(), Some(refused));
        let body = Error::from(refused).body();
        for (param, value) in [
            ("retry_after_ms", serde_json::json!(1000)),
            ("limit", "8388608 bytes at once".into()),
            ("scope", "held_bytes".into()),
        ] {
            assert_eq!(body.params.extra[param], value);
        }
        assert_eq!(budget.take(two, 3 * MB).err(), Some(BudgetExhausted::Node));
        let bytes = permit.guard(Bytes::from_static(b"abc"));
        let part = bytes.slice(1..2);
        drop(bytes);
        assert_eq!(budget.take(one, 1).err(), Some(refused));
        drop(part);
        let mut permit = budget.take(one, MB).expect("they are back");
        permit.grow(7 * MB).expect("up to the share");
        assert_eq!(permit.grow(1), Err(refused));
        assert_eq!(permit.bytes(), 8 * MB);
        drop(permit);
        assert!(budget.0.held.lock().owners.is_empty());
    }
}
