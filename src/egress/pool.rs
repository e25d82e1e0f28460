//! Exchanges under way and idle connections, both bounded, per origin and in all.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{EgressError, connection::Connection};

/// Longest idle time of a connection. Node.js and uvicorn close after 5 s, and a request that meets
/// the close is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

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
    origins: HashMap<Arc<str>, Origin>,
}

#[derive(Default)]
struct Origin {
    in_flight: usize,
    /// The one that was used last stands last.
    idle: Vec<(Instant, Connection)>,
}

/// A place for an exchange, returned when dropped.
pub(super) struct Place<'a> {
    pool: &'a Pool,
    origin: Arc<str>,
}

impl Pool {
    /// A pool of `max` exchanges in all and `max_per_origin` with each origin, and as many idle
    /// connections.
    pub(super) fn new(max: usize, max_per_origin: usize) -> Self {
        Pool {
            max,
            max_per_origin,
            state: Mutex::default(),
        }
    }

    /// Takes a place. Errors: `Busy` if all are taken.
    pub(super) fn place(&self, origin: &Arc<str>) -> Result<Place<'_>, EgressError> {
        let mut state = self.state.lock();
        if state.in_flight >= self.max {
            return Err(EgressError::Busy);
        }
        let entry = state.origins.entry(origin.clone()).or_default();
        if entry.in_flight >= self.max_per_origin {
            return Err(EgressError::Busy);
        }
        entry.in_flight += 1;
        state.in_flight += 1;
        Ok(Place {
            pool: self,
            origin: origin.clone(),
        })
    }

    /// Closes connections that were idle for too long.
    pub(super) fn close_idle(&self) {
        let mut closed = Vec::new();
        let mut state = self.state.lock();
        for origin in state.origins.values_mut() {
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

impl Origin {
    fn is_unused(&self) -> bool {
        self.in_flight == 0 && self.idle.is_empty()
    }
}

impl Place<'_> {
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

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.in_flight -= 1;
        if let Some(origin) = state.origins.get_mut(&self.origin) {
            origin.in_flight -= 1;
            if origin.is_unused() {
                state.origins.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_per_origin_and_in_all_and_come_back() {
        let pool = Pool::new(3, 2);
        let [a, b, c]: [Arc<str>; 3] = ["a", "b", "c"].map(Arc::from);
        let held = [pool.place(&a), pool.place(&a)];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(pool.place(&a).err(), Some(EgressError::Busy));
        let other = pool.place(&b).expect("a place");
        assert_eq!(pool.place(&c).err(), Some(EgressError::Busy));
        drop((held, other));
        assert!(pool.place(&a).is_ok());
        assert!(pool.state.lock().origins.is_empty());
    }
}
