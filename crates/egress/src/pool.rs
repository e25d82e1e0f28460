//! Exchanges under way and idle connections, both bounded, per origin and in all.

use std::{
    collections::HashMap,
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
/// are free. What is left serves holders that have none.
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
}

#[derive(Default)]
struct Origin {
    in_flight: usize,
    held: HashMap<Uuid, usize>,
    waiting: Vec<Waiter>,
    /// The one that was used last stands last.
    idle: Vec<(Instant, Connection)>,
}

struct Waiter {
    holder: Option<Uuid>,
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
            let entry = state.origins.entry(origin.clone()).or_default();
            entry.waiting.push(Waiter {
                holder,
                ticket,
                granted,
            });
        }
        self.grant(Some(origin));
        match tokio::time::timeout(wait, place).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(EgressError::Busy),
        }
    }

    /// Gives free places to those that wait, at one origin or at all.
    fn grant(self: &Arc<Self>, origin: Option<&Arc<str>>) {
        let mut granted = Vec::new();
        let mut state = self.state.lock();
        while state.in_flight < self.max
            && let Some((origin, waiter)) = state.next_waiter(origin, self.max_per_origin)
        {
            let place = Place {
                pool: self.clone(),
                origin,
                holder: waiter.holder,
            };
            granted.push((waiter.granted, place));
        }
        drop(state);
        for (waiter, place) in granted {
            // A waiter that has gone returns its place here.
            drop(waiter.send(place));
        }
    }

    /// Closes connections that were idle for too long.
    pub(super) fn close_idle(&self) {
        let mut closed = Vec::new();
        let mut state = self.state.lock();
        for origin in state.origins.values_mut() {
            origin.waiting.retain(|waiter| !waiter.granted.is_closed());
            let old = |(since, _): &mut (Instant, Connection)| since.elapsed() > IDLE_TIMEOUT;
            closed.extend(origin.idle.extract_if(.., old));
        }
        state.idle -= closed.len();
        state.origins.retain(|_, origin| !origin.is_unused());
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
    /// Takes the waiter that comes first out of its queue, and counts its place.
    fn next_waiter(
        &mut self,
        only: Option<&Arc<str>>,
        max_per_origin: usize,
    ) -> Option<(Arc<str>, Waiter)> {
        let first_of = |(name, origin): (&Arc<str>, &Origin)| {
            let (rank, at) = origin.first(max_per_origin)?;
            Some((rank, at, name.clone()))
        };
        let (_, at, name) = match only {
            Some(name) => first_of((name, self.origins.get(name)?)),
            None => self.origins.iter().filter_map(first_of).min(),
        }?;
        let origin = self.origins.get_mut(&name)?;
        let waiter = origin.waiting.swap_remove(at);
        if let Some(holder) = waiter.holder {
            *origin.held.entry(holder).or_default() += 1;
        }
        origin.in_flight += 1;
        self.in_flight += 1;
        Some((name, waiter))
    }
}

impl Origin {
    /// The waiter that comes first, if a place is free for it: its rank and where it stands.
    fn first(&self, max: usize) -> Option<((usize, u64), usize)> {
        let free = max.saturating_sub(self.in_flight);
        let share = free.div_ceil(FREE_PLACES_PER_HELD);
        let live = self.waiting.iter().enumerate();
        let live = live.filter(|(_, waiter)| !waiter.granted.is_closed());
        let ranks = live.map(|(at, waiter)| {
            let held = waiter.holder.and_then(|holder| self.held.get(&holder));
            ((held.copied().unwrap_or_default(), waiter.ticket), at)
        });
        ranks.min().filter(|((held, _), _)| *held < share)
    }

    fn is_unused(&self) -> bool {
        self.in_flight == 0 && self.idle.is_empty() && self.waiting.is_empty()
    }

    fn put_back(&mut self, holder: Option<Uuid>) {
        self.in_flight -= 1;
        let Some(holder) = holder else { return };
        if let Some(held) = self.held.get_mut(&holder) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&holder);
            }
        }
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
        let was_full = state.in_flight >= self.pool.max;
        state.in_flight -= 1;
        if let Some(origin) = state.origins.get_mut(&self.origin) {
            origin.put_back(self.holder);
            if origin.is_unused() {
                state.origins.remove(&self.origin);
            }
        }
        drop(state);
        self.pool.grant((!was_full).then_some(&self.origin));
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
}
