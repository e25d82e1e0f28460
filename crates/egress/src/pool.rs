//! Exchanges under way and idle connections, both bounded, per origin and in all.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{EgressError, connection::Connection};

/// Longest idle time of a connection. Node.js and uvicorn close after 5 s, and a request that meets
/// the close is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// A holder takes another place of an origin only while it has fewer than this part of those that
/// are free. The rest serves holders that have none.
const FREE_PLACES_PER_HELD: usize = 4;

/// Counts exchanges and keeps idle connections.
pub(super) struct Pool {
    max: usize,
    max_per_origin: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_flight: usize,
    idle: usize,
    next_ticket: u64,
    origins: HashMap<Arc<str>, Origin>,
    /// The origins with a free place and a waiter for it, by the first waiter's rank.
    ready: BTreeMap<Rank, Arc<str>>,
}

/// The rank of a waiter: the places that its holder has, then the time of its arrival as a number.
type Rank = (usize, u64);

#[derive(Default)]
struct Origin {
    in_flight: usize,
    /// All that have no holder stand under `None`, which holds nothing.
    holders: HashMap<Option<Uuid>, Holder>,
    /// The holders that wait, by the rank of their first waiter. There may be thousands, so none is
    /// searched for.
    ranks: BTreeMap<Rank, Option<Uuid>>,
    /// Its entry in [`State::ready`].
    ready: Option<Rank>,
    /// The one that was used last stands last.
    idle: Vec<(Instant, Connection)>,
}

#[derive(Default)]
struct Holder {
    held: usize,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    /// Grows with the time of arrival.
    ticket: u64,
    granted: oneshot::Sender<Place>,
}

/// A place for an exchange, returned when dropped.
pub(super) struct Place {
    pool: Arc<Pool>,
    origin: Arc<str>,
    holder: Option<Uuid>,
}

impl Pool {
    /// A pool of `max` exchanges in all and `max_per_origin` with each origin, and as many idle
    /// connections.
    pub(super) fn new(max: usize, max_per_origin: usize) -> Arc<Self> {
        Arc::new(Pool {
            max,
            max_per_origin,
            state: Mutex::default(),
        })
    }

    /// Takes a place, or waits for one. Of those that wait, the one that holds fewest places of its
    /// origin comes first, then the one that waits longest. Errors: `Busy` after `wait`.
    pub(super) async fn place(
        self: &Arc<Self>,
        origin: &Arc<str>,
        holder: Option<Uuid>,
        wait: Duration,
    ) -> Result<Place, EgressError> {
        let (granted, place) = oneshot::channel();
        {
            let mut state = self.state.lock();
            state.next_ticket += 1;
            let ticket = state.next_ticket;
            state.update(origin, self.max_per_origin, |origin| {
                let waiter = Waiter { ticket, granted };
                origin.change(holder, |holder| holder.waiting.push_back(waiter));
            });
        }
        self.grant();
        match tokio::time::timeout(wait, place).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(EgressError::Busy),
        }
    }

    /// Gives free places to those that wait.
    fn grant(self: &Arc<Self>) {
        let mut granted = Vec::new();
        let mut state = self.state.lock();
        while state.in_flight < self.max
            && let Some((origin, holder, sender)) = state.take_first(self.max_per_origin)
        {
            let place = Place {
                pool: self.clone(),
                origin,
                holder,
            };
            granted.push((sender, place));
        }
        drop(state);
        for (sender, place) in granted {
            // A waiter that has gone returns its place here.
            drop(sender.send(place));
        }
    }

    /// Closes connections that were idle for too long.
    pub(super) fn close_idle(&self) {
        let mut closed = Vec::new();
        let mut state = self.state.lock();
        let names: Vec<Arc<str>> = state.origins.keys().cloned().collect();
        for name in names {
            state.update(&name, self.max_per_origin, |origin| {
                origin.forget_closed();
                let old = |(since, _): &mut (Instant, Connection)| since.elapsed() > IDLE_TIMEOUT;
                closed.extend(origin.idle.extract_if(.., old));
            });
        }
        state.idle -= closed.len();
        drop(state);
    }

    /// Closes every idle connection.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        let mut closed = Vec::new();
        for origin in state.origins.values_mut() {
            closed.append(&mut origin.idle);
        }
        state.idle = 0;
        drop(state);
    }
}

impl State {
    /// Changes an origin, and keeps its entry among those that are ready.
    fn update<T>(
        &mut self,
        name: &Arc<str>,
        max_per_origin: usize,
        change: impl FnOnce(&mut Origin) -> T,
    ) -> T {
        let origin = self.origins.entry(name.clone()).or_default();
        let changed = change(origin);
        let ready = origin.first(max_per_origin);
        if ready != origin.ready {
            if let Some(rank) = origin.ready {
                self.ready.remove(&rank);
            }
            if let Some(rank) = ready {
                self.ready.insert(rank, name.clone());
            }
            origin.ready = ready;
        }
        if origin.is_unused() {
            self.origins.remove(name);
        }
        changed
    }

    /// Takes the waiter that comes first out of its queue, and counts its place.
    fn take_first(
        &mut self,
        max_per_origin: usize,
    ) -> Option<(Arc<str>, Option<Uuid>, oneshot::Sender<Place>)> {
        loop {
            let (rank, name) = self.ready.first_key_value()?;
            let (rank, name) = (*rank, name.clone());
            let taken = self.update(&name, max_per_origin, |origin| origin.take(rank));
            if let Some((holder, sender)) = taken {
                self.in_flight += 1;
                return Some((name, holder, sender));
            }
        }
    }
}

impl Origin {
    /// The rank of the waiter that comes first, if a place is free for it.
    fn first(&self, max: usize) -> Option<Rank> {
        let free = max.saturating_sub(self.in_flight);
        let share = free.div_ceil(FREE_PLACES_PER_HELD);
        let (rank, _) = self.ranks.first_key_value()?;
        (rank.0 < share).then_some(*rank)
    }

    /// Takes the first waiter of this rank, and counts its place. None if it has gone.
    fn take(&mut self, rank: Rank) -> Option<(Option<Uuid>, oneshot::Sender<Place>)> {
        let id = *self.ranks.get(&rank)?;
        let granted = self.change(id, |holder| {
            let waiter = holder.waiting.pop_front()?;
            if waiter.granted.is_closed() {
                return None;
            }
            holder.held += usize::from(id.is_some());
            Some(waiter.granted)
        })?;
        self.in_flight += 1;
        Some((id, granted))
    }

    /// Changes a holder, and keeps its rank.
    fn change<T>(&mut self, id: Option<Uuid>, change: impl FnOnce(&mut Holder) -> T) -> T {
        let holder = self.holders.entry(id).or_default();
        if let Some(rank) = holder.rank() {
            self.ranks.remove(&rank);
        }
        let changed = change(holder);
        if let Some(rank) = holder.rank() {
            self.ranks.insert(rank, id);
        } else if holder.held == 0 {
            self.holders.remove(&id);
        }
        changed
    }

    fn forget_closed(&mut self) {
        let ids: Vec<Option<Uuid>> = self.ranks.values().copied().collect();
        for id in ids {
            self.change(id, |holder| {
                let waiting = &mut holder.waiting;
                waiting.retain(|waiter| !waiter.granted.is_closed());
            });
        }
    }

    fn is_unused(&self) -> bool {
        self.in_flight == 0 && self.idle.is_empty() && self.ranks.is_empty()
    }

    fn put_back(&mut self, id: Option<Uuid>) {
        self.in_flight -= 1;
        if id.is_some() {
            self.change(id, |holder| holder.held -= 1);
        }
    }
}

impl Holder {
    /// The rank of its first waiter.
    fn rank(&self) -> Option<Rank> {
        Some((self.held, self.waiting.front()?.ticket))
    }
}

impl Place {
    /// An idle connection to one of `addresses`, which the caller has checked.
    pub(super) fn idle(&self, addresses: &[IpAddr]) -> Option<Connection> {
        let mut state = self.pool.state.lock();
        let idle = &mut state.origins.get_mut(&self.origin)?.idle;
        let usable = |(since, connection): &(Instant, Connection)| {
            since.elapsed() <= IDLE_TIMEOUT && addresses.contains(&connection.peer())
        };
        let (_, connection) = idle.remove(idle.iter().rposition(usable)?);
        state.idle -= 1;
        Some(connection)
    }

    /// Keeps a connection for the next exchange, unless the pool is full.
    pub(super) fn keep(&self, connection: Connection) {
        let mut state = self.pool.state.lock();
        if state.idle >= self.pool.max {
            return;
        }
        let Some(origin) = state.origins.get_mut(&self.origin) else {
            return;
        };
        if origin.idle.len() < self.pool.max_per_origin {
            origin.idle.push((Instant::now(), connection));
            state.idle += 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.in_flight -= 1;
        let max = self.pool.max_per_origin;
        state.update(&self.origin, max, |origin| origin.put_back(self.holder));
        drop(state);
        self.pool.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// A place without waiting.
    fn at_once(pool: &Arc<Pool>, origin: &Arc<str>, holder: u128) -> Option<Place> {
        let place = pool.place(origin, Some(Uuid::from_u128(holder)), Duration::ZERO);
        place.now_or_never().and_then(Result::ok)
    }

    #[tokio::test]
    async fn places_are_bounded_per_origin_and_in_all_and_come_back() {
        let pool = Pool::new(3, 2);
        let [a, b, c]: [Arc<str>; 3] = ["a", "b", "c"].map(Arc::from);
        let held = [at_once(&pool, &a, 1), at_once(&pool, &a, 2)];
        assert!(held.iter().all(Option::is_some));
        assert!(at_once(&pool, &a, 3).is_none());
        let other = at_once(&pool, &b, 1).expect("a place");
        assert!(at_once(&pool, &c, 1).is_none());
        drop((held, other));
        assert!(at_once(&pool, &a, 1).is_some());
        pool.close_idle();
        assert!(pool.state.lock().origins.is_empty());
    }

    #[tokio::test]
    async fn holders_of_many_leave_places_for_those_that_have_none() {
        let pool = Pool::new(256, 64);
        let origin = Arc::from("a");
        let mut held = Vec::new();
        // Twenty-two that want three each want more than there are.
        for _ in 0..3 {
            held.extend((0..22).filter_map(|holder| at_once(&pool, &origin, holder)));
        }
        let of = |holder| held.iter().filter(|place| place.holder == holder).count();
        assert!((0..22).all(|holder| of(Some(Uuid::from_u128(holder))) >= 2));
        let others: Vec<Place> = (100..104)
            .filter_map(|holder| at_once(&pool, &origin, holder))
            .collect();
        assert_eq!(others.len(), 4);
    }

    #[tokio::test]
    async fn of_those_that_wait_the_one_with_fewest_places_comes_first() {
        let pool = Pool::new(256, 2);
        let origin = Arc::from("a");
        let wait = Duration::from_secs(60);
        let first = at_once(&pool, &origin, 1).expect("a place");
        let second = at_once(&pool, &origin, 2).expect("a place");
        let [greedy, gone, poor] = [1, 3, 4].map(|holder| {
            let (pool, origin) = (pool.clone(), origin.clone());
            Box::pin(async move {
                pool.place(&origin, Some(Uuid::from_u128(holder)), wait)
                    .await
            })
        });
        let (mut greedy, mut poor) = (greedy, poor);
        assert!(greedy.as_mut().now_or_never().is_none());
        {
            let mut gone = gone;
            assert!(gone.as_mut().now_or_never().is_none());
        }
        assert!(poor.as_mut().now_or_never().is_none());
        drop(second);
        let poor = poor.now_or_never().expect("granted").expect("a place");
        assert!(greedy.as_mut().now_or_never().is_none());
        drop((first, poor));
        assert!(greedy.now_or_never().expect("granted").is_ok());
    }

    #[tokio::test]
    async fn a_full_pool_serves_the_waiters_of_every_origin() {
        let pool = Pool::new(1, 1);
        let [a, b]: [Arc<str>; 2] = ["a", "b"].map(Arc::from);
        let held = at_once(&pool, &a, 1).expect("a place");
        let mut other = Box::pin(pool.place(&b, None, Duration::from_secs(60)));
        assert!(other.as_mut().now_or_never().is_none());
        drop(held);
        assert!(other.now_or_never().expect("granted").is_ok());
    }

    #[tokio::test]
    async fn waiters_come_in_the_order_of_their_ranks_however_many_there_are() {
        let pool = Pool::new(256, 1);
        let origin = Arc::from("a");
        let held = at_once(&pool, &origin, 0).expect("a place");
        let wait = |holder: u128| {
            let (pool, origin) = (pool.clone(), origin.clone());
            Box::pin(async move {
                let wait = Duration::from_secs(60);
                pool.place(&origin, Some(Uuid::from_u128(holder)), wait)
                    .await
            })
        };
        // Ten that wait three times each, the calls of one after those of another.
        let mut waiting: Vec<_> = (0..30).map(|n| wait(n / 3)).collect();
        for waiter in &mut waiting {
            assert!(waiter.as_mut().now_or_never().is_none());
        }
        drop(held);
        // The only place goes to the longest wait each time, because its last holder has returned it.
        for waiter in waiting {
            drop(waiter.now_or_never().expect("granted").expect("a place"));
        }
        assert!(pool.state.lock().origins.is_empty() && pool.state.lock().ready.is_empty());
    }
}
