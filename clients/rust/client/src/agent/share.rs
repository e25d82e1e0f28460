//! A process's share of the conversations: it lasts as long as its connection.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// The server gives a lost connection's conversations to another process after 10 s.
const KEEP: Duration = Duration::from_secs(8);

/// The share of the present connection.
#[derive(Default)]
pub(super) struct Share(Mutex<Arc<Lease>>);

/// The share of one connection.
#[derive(Default)]
pub(super) struct Lease(watch::Sender<Option<Instant>>);

impl Share {
    pub(super) fn current(&self) -> Arc<Lease> {
        self.0.lock().clone()
    }

    /// The connection has ended. If it was silent, other processes may have the conversations
    /// already.
    pub(super) fn lost(&self, was_silent: bool) {
        let lease = std::mem::take(&mut *self.0.lock());
        let keep = if was_silent { Duration::ZERO } else { KEEP };
        lease.0.send_replace(Some(Instant::now() + keep));
    }
}

impl Lease {
    /// Whether its connection has ended. Nothing is begun any more.
    pub(super) fn is_lost(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// Returns when another process may have the conversations.
    pub(super) async fn ended(&self) {
        let mut end = self.0.subscribe();
        let end = end.wait_for(Option::is_some).await.map(|end| *end);
        match end {
            Ok(Some(end)) => sleep_until(end).await,
            _ => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lost_share_lasts_for_eight_seconds_and_a_silent_one_is_over() {
        let share = Share::default();
        let lease = share.current();
        assert!(!lease.is_lost());
        let before = Instant::now();
        share.lost(false);
        assert!(lease.is_lost() && !share.current().is_lost());
        let end = lease.0.borrow().expect("an end");
        assert!(end >= before + KEEP && end <= Instant::now() + KEEP);
        let next = share.current();
        share.lost(true);
        next.ended().await;
        assert!(lease.is_lost());
    }
}
