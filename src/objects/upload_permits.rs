//! The permits of uploads on a node: how many bytes streams it receives at once, and for whom.
//!
//! An account has a few permits and an address some more, so that nobody holds all of them. An
//! upload that finds none waits for a moment, in the order of arrival.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    error::{Error, Result},
    ids::UserId,
    limits::{
        address::ClientIp,
        quotas::{MAX_UPLOADS_PER_ACCOUNT, MAX_UPLOADS_PER_ADDRESS, UPLOAD_QUEUE_TIMEOUT},
    },
    metrics,
};

/// Permits are short when so small a part of them is free.
const SHORT_PART: usize = 4;

/// A holder of permits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holder {
    /// An account, with its agents.
    Account(UserId),
    /// An address, as limits count it.
    Address(String),
}

impl Holder {
    fn max(&self) -> usize {
        match self {
            Holder::Account(_) => MAX_UPLOADS_PER_ACCOUNT,
            Holder::Address(_) => MAX_UPLOADS_PER_ADDRESS,
        }
    }

    fn is_like(&self, other: &Holder) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// The account and the address of an upload.
type Holders = [Holder; 2];

/// The permits of a node; clones share them.
#[derive(Clone)]
pub struct UploadPermits(Arc<Mutex<Permits>>);

struct Permits {
    all: usize,
    taken: usize,
    held: HashMap<Holder, usize>,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    holders: Holders,
    ready: oneshot::Sender<UploadPermit>,
}

/// A permit of an upload, until it is dropped.
pub struct UploadPermit {
    permits: UploadPermits,
    holders: Holders,
}

impl UploadPermits {
    /// So many free permits.
    pub fn new(all: usize) -> Self {
        UploadPermits(Arc::new(Mutex::new(Permits {
            all,
            taken: 0,
            held: HashMap::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Takes a permit for an account's upload from an address. Errors: 503 if none is free for a
    /// while, or if as many wait already as may hold permits.
    pub async fn take(&self, account: UserId, address: ClientIp) -> Result<UploadPermit> {
        let holders = [
            Holder::Account(account),
            Holder::Address(address.to_string()),
        ];
        let ready = {
            let mut permits = self.0.lock();
            if permits.has_room(&holders) {
                return Ok(self.hold(&mut permits, holders));
            }
            permits.queue(holders)?
        };
        match tokio::time::timeout(UPLOAD_QUEUE_TIMEOUT, ready).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::full()),
        }
    }

    fn hold(&self, permits: &mut Permits, holders: Holders) -> UploadPermit {
        permits.taken += 1;
        for holder in &holders {
            *permits.held.entry(holder.clone()).or_default() += 1;
        }
        metrics::upload_opened();
        UploadPermit {
            permits: self.clone(),
            holders,
        }
    }

    /// Frees a permit, and hands out what that leaves, in the order of arrival.
    fn free(&self, holders: &Holders) {
        let mut ready = Vec::new();
        {
            let mut permits = self.0.lock();
            permits.release(holders);
            while let Some(next) = permits.next_waiting() {
                ready.push((next.ready, self.hold(&mut permits, next.holders)));
            }
        }
        metrics::upload_closed();
        // A permit whose upload has gone meanwhile comes back here, so the lock is free by now.
        for (waiting, permit) in ready {
            drop(waiting.send(permit));
        }
    }
}

impl Permits {
    fn held(&self, holder: &Holder) -> usize {
        self.held.get(holder).copied().unwrap_or_default()
    }

    fn has_room(&self, holders: &Holders) -> bool {
        self.taken < self.all
            && holders
                .iter()
                .all(|holder| self.held(holder) < holder.max())
    }

    /// Waits behind the others. A holder has no more in the queue than it may have permits.
    fn queue(&mut self, holders: Holders) -> Result<oneshot::Receiver<UploadPermit>> {
        self.waiting.retain(|waiting| !waiting.ready.is_closed());
        let queued = |holder: &Holder| {
            let own = self
                .waiting
                .iter()
                .filter(|one| one.holders.contains(holder));
            own.count()
        };
        if self.waiting.len() >= self.all || holders.iter().any(|one| queued(one) >= one.max()) {
            return Err(Error::full());
        }
        let (ready, permit) = oneshot::channel();
        self.waiting.push_back(Waiting { holders, ready });
        Ok(permit)
    }

    fn release(&mut self, holders: &Holders) {
        self.taken -= 1;
        for holder in holders {
            let left = self.held(holder).saturating_sub(1);
            match left {
                0 => self.held.remove(holder),
                left => self.held.insert(holder.clone(), left),
            };
        }
    }

    fn next_waiting(&mut self) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.ready.is_closed());
        let next = self
            .waiting
            .iter()
            .position(|one| self.has_room(&one.holders));
        next.and_then(|at| self.waiting.remove(at))
    }

    /// Whether no account, or no address, holds more permits than this one. A single permit is
    /// never much.
    fn holds_most(&self, holder: &Holder) -> bool {
        let like = self.held.iter().filter(|(other, _)| other.is_like(holder));
        let most = like.map(|(_, held)| *held).max().unwrap_or_default();
        most > 1 && self.held(holder) == most
    }
}

impl UploadPermit {
    /// Whether permits are short, and this upload's account or address holds most of them.
    pub fn is_pressed(&self) -> bool {
        let permits = self.permits.0.lock();
        let free = permits.all - permits.taken;
        free * SHORT_PART <= permits.all && self.holders.iter().any(|one| permits.holds_most(one))
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        self.permits.free(&self.holders);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(n: u8) -> ClientIp {
        ClientIp([192, 0, 2, n].into())
    }

    async fn take(permits: &UploadPermits, account: u128, from: u8) -> Option<UploadPermit> {
        let taking = permits.take(UserId::from_bytes(account.to_be_bytes()), address(from));
        taking.await.ok()
    }

    async fn take_many(
        permits: &UploadPermits,
        account: u128,
        from: u8,
        n: usize,
    ) -> Vec<UploadPermit> {
        let mut held = Vec::new();
        for _ in 0..n {
            held.push(take(permits, account, from).await.expect("a permit"));
        }
        held
    }

    #[tokio::test]
    async fn an_account_has_four_permits_and_an_address_sixteen() {
        let permits = UploadPermits::new(64);
        let mut held = take_many(&permits, 1, 1, MAX_UPLOADS_PER_ACCOUNT).await;
        assert!(
            take(&permits, 1, 2).await.is_none(),
            "a fifth of the account"
        );
        for account in 2..=4 {
            held.extend(take_many(&permits, account, 1, 4).await);
        }
        assert!(
            take(&permits, 9, 1).await.is_none(),
            "a 17th of the address"
        );
        assert!(take(&permits, 9, 2).await.is_some());
    }

    #[tokio::test]
    async fn who_waits_gets_the_next_permit_and_who_gave_up_holds_none() {
        let permits = UploadPermits::new(2);
        let mut held = take_many(&permits, 1, 1, 2).await;
        let gone = tokio::time::timeout(Duration::from_millis(1), take(&permits, 2, 2)).await;
        assert!(gone.is_err(), "it waits, and its client hangs up");
        let (permit, ()) = tokio::join!(take(&permits, 3, 3), async {
            tokio::task::yield_now().await;
            drop(held.pop());
        });
        let permit = permit.expect("a permit");
        assert!(take(&permits, 2, 2).await.is_none(), "both are taken");
        drop(permit);
        assert!(take(&permits, 2, 2).await.is_some());
        drop(held);
        assert_eq!(permits.0.lock().taken, 0);
        assert!(permits.0.lock().held.is_empty());
    }

    #[tokio::test]
    async fn the_queue_is_bounded_for_each_holder() {
        let permits = UploadPermits::new(256);
        let _held = take_many(&permits, 1, 1, 4).await;
        let began = tokio::time::Instant::now();
        let waiting = futures_util::future::join_all((0..4).map(|_| take(&permits, 1, 1)));
        let (waiting, fifth) = tokio::join!(waiting, async {
            tokio::task::yield_now().await;
            let refused = take(&permits, 1, 1).await.is_none();
            refused && began.elapsed() < UPLOAD_QUEUE_TIMEOUT
        });
        assert!(fifth, "a fifth does not wait");
        assert!(waiting.iter().all(Option::is_none));
    }

    #[tokio::test]
    async fn who_holds_most_is_pressed_when_a_quarter_is_left() {
        let permits = UploadPermits::new(16);
        let greedy = take_many(&permits, 1, 1, 4).await;
        let mut held = Vec::new();
        for account in 2..9 {
            held.push(take(&permits, account, 2).await.expect("a permit"));
        }
        assert!(!greedy[0].is_pressed(), "five are free");
        held.push(take(&permits, 10, 3).await.expect("a permit"));
        assert!(greedy.iter().all(UploadPermit::is_pressed));
        // The second address holds seven permits, and is pressed for that. A single permit is not.
        assert!(held[0].is_pressed());
        assert!(!held[7].is_pressed());
        drop(greedy);
        assert!(!held[0].is_pressed());
    }
}
