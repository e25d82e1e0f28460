//! The places of uploads on a node: how many bytes streams it receives at once, and for whom.
//!
//! An account has a few places and an address some more, so that nobody holds all of them. An
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

/// Places are short when so small a part of them is free.
const SHORT_PART: usize = 4;

/// A holder of places.
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

/// The places of a node; clones share them.
#[derive(Clone)]
pub struct UploadPlaces(Arc<Mutex<Places>>);

struct Places {
    all: usize,
    taken: usize,
    held: HashMap<Holder, usize>,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    holders: Holders,
    ready: oneshot::Sender<UploadPlace>,
}

/// A place of an upload, until it is dropped.
pub struct UploadPlace {
    places: UploadPlaces,
    holders: Holders,
}

impl UploadPlaces {
    /// So many free places.
    pub fn new(all: usize) -> Self {
        UploadPlaces(Arc::new(Mutex::new(Places {
            all,
            taken: 0,
            held: HashMap::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Takes a place for an account's upload from an address. Errors: 503 if none is free for a
    /// while, or if as many wait already as may hold places.
    pub async fn take(&self, account: UserId, address: ClientIp) -> Result<UploadPlace> {
        let holders = [
            Holder::Account(account),
            Holder::Address(address.to_string()),
        ];
        let ready = {
            let mut places = self.0.lock();
            if places.has_room(&holders) {
                return Ok(self.hold(&mut places, holders));
            }
            places.queue(holders)?
        };
        match tokio::time::timeout(UPLOAD_QUEUE_TIMEOUT, ready).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Error::full()),
        }
    }

    fn hold(&self, places: &mut Places, holders: Holders) -> UploadPlace {
        places.taken += 1;
        for holder in &holders {
            *places.held.entry(holder.clone()).or_default() += 1;
        }
        metrics::upload_opened();
        UploadPlace {
            places: self.clone(),
            holders,
        }
    }

    /// Frees a place, and hands out what that leaves, in the order of arrival.
    fn free(&self, holders: &Holders) {
        let mut ready = Vec::new();
        {
            let mut places = self.0.lock();
            places.give_back(holders);
            while let Some(next) = places.next_waiting() {
                ready.push((next.ready, self.hold(&mut places, next.holders)));
            }
        }
        metrics::upload_closed();
        // A place whose upload has gone meanwhile comes back here, so the lock is free by now.
        for (waiting, place) in ready {
            drop(waiting.send(place));
        }
    }
}

impl Places {
    fn held(&self, holder: &Holder) -> usize {
        self.held.get(holder).copied().unwrap_or_default()
    }

    fn has_room(&self, holders: &Holders) -> bool {
        self.taken < self.all
            && holders
                .iter()
                .all(|holder| self.held(holder) < holder.max())
    }

    /// Waits behind the others. A holder has no more in the queue than it may have places.
    fn queue(&mut self, holders: Holders) -> Result<oneshot::Receiver<UploadPlace>> {
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
        let (ready, place) = oneshot::channel();
        self.waiting.push_back(Waiting { holders, ready });
        Ok(place)
    }

    fn give_back(&mut self, holders: &Holders) {
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

    /// Whether no account, or no address, holds more places than this one. A single place is
    /// never much.
    fn holds_most(&self, holder: &Holder) -> bool {
        let like = self.held.iter().filter(|(other, _)| other.is_like(holder));
        let most = like.map(|(_, held)| *held).max().unwrap_or_default();
        most > 1 && self.held(holder) == most
    }
}

impl UploadPlace {
    /// Whether places are short, and this upload's account or address holds most of them.
    pub fn is_pressed(&self) -> bool {
        let places = self.places.0.lock();
        let free = places.all - places.taken;
        free * SHORT_PART <= places.all && self.holders.iter().any(|one| places.holds_most(one))
    }
}

impl Drop for UploadPlace {
    fn drop(&mut self) {
        self.places.free(&self.holders);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(n: u8) -> ClientIp {
        ClientIp([192, 0, 2, n].into())
    }

    async fn take(places: &UploadPlaces, account: u128, from: u8) -> Option<UploadPlace> {
        let taking = places.take(UserId::from_bytes(account.to_be_bytes()), address(from));
        taking.await.ok()
    }

    async fn take_many(
        places: &UploadPlaces,
        account: u128,
        from: u8,
        n: usize,
    ) -> Vec<UploadPlace> {
        let mut held = Vec::new();
        for _ in 0..n {
            held.push(take(places, account, from).await.expect("a place"));
        }
        held
    }

    #[tokio::test]
    async fn an_account_has_four_places_and_an_address_sixteen() {
        let places = UploadPlaces::new(64);
        let mut held = take_many(&places, 1, 1, MAX_UPLOADS_PER_ACCOUNT).await;
        assert!(
            take(&places, 1, 2).await.is_none(),
            "a fifth of the account"
        );
        for account in 2..=4 {
            held.extend(take_many(&places, account, 1, 4).await);
        }
        assert!(take(&places, 9, 1).await.is_none(), "a 17th of the address");
        assert!(take(&places, 9, 2).await.is_some());
    }

    #[tokio::test]
    async fn who_waits_gets_the_next_place_and_who_gave_up_holds_none() {
        let places = UploadPlaces::new(2);
        let mut held = take_many(&places, 1, 1, 2).await;
        let gone = tokio::time::timeout(Duration::from_millis(1), take(&places, 2, 2)).await;
        assert!(gone.is_err(), "it waits, and its client hangs up");
        let (place, ()) = tokio::join!(take(&places, 3, 3), async {
            tokio::task::yield_now().await;
            drop(held.pop());
        });
        let place = place.expect("a place");
        assert!(take(&places, 2, 2).await.is_none(), "both are taken");
        drop(place);
        assert!(take(&places, 2, 2).await.is_some());
        drop(held);
        assert_eq!(places.0.lock().taken, 0);
        assert!(places.0.lock().held.is_empty());
    }

    #[tokio::test]
    async fn the_queue_is_bounded_for_each_holder() {
        let places = UploadPlaces::new(256);
        let _held = take_many(&places, 1, 1, 4).await;
        let began = tokio::time::Instant::now();
        let waiting = futures_util::future::join_all((0..4).map(|_| take(&places, 1, 1)));
        let (waiting, fifth) = tokio::join!(waiting, async {
            tokio::task::yield_now().await;
            let refused = take(&places, 1, 1).await.is_none();
            refused && began.elapsed() < UPLOAD_QUEUE_TIMEOUT
        });
        assert!(fifth, "a fifth does not wait");
        assert!(waiting.iter().all(Option::is_none));
    }

    #[tokio::test]
    async fn who_holds_most_is_pressed_when_a_quarter_is_left() {
        let places = UploadPlaces::new(16);
        let greedy = take_many(&places, 1, 1, 4).await;
        let mut held = Vec::new();
        for account in 2..9 {
            held.push(take(&places, account, 2).await.expect("a place"));
        }
        assert!(!greedy[0].is_pressed(), "five are free");
        held.push(take(&places, 10, 3).await.expect("a place"));
        assert!(greedy.iter().all(UploadPlace::is_pressed));
        // The second address holds seven places, and is pressed for that. A single place is not.
        assert!(held[0].is_pressed());
        assert!(!held[7].is_pressed());
        drop(greedy);
        assert!(!held[0].is_pressed());
    }
}
