//! Hints: the users whose inboxes have an event that may wake a device, from the commit to the rows
//! of `push_wake`. Every node writes them, whether it pushes or not. A lost one costs the time until
//! the next sweep.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    rules,
    store::{self, wakes},
};
use crate::{
    db::Db,
    delivery::Backplane,
    error::Result,
    events,
    ids::{CredentialId, Principal, UserId},
    inbox::AppendedEvent,
    limits::slots::Slots,
    supervisor,
};

/// Wait of a hint for others, which then share a statement.
const GATHER_TIME: Duration = Duration::from_millis(50);
/// Between two tries while Postgres is away.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Most users of a statement.
const MAX_BATCH_USERS: usize = 1024;
/// Most users that wait. The sweep finds the others.
const MAX_NOTED_USERS: usize = 65_536;

/// Notes users with something to push. Clones share them.
#[derive(Clone, Default)]
pub struct Waker {
    noted: Arc<Mutex<PendingHints>>,
    notify: Arc<Notify>,
    wake_due: Arc<Notify>,
}

#[derive(Default)]
struct PendingHints {
    /// Users with new events.
    fresh: HashSet<UserId>,
    /// Users with a socket less.
    offline: HashSet<UserId>,
    /// Credentials that have ended.
    ended: Vec<CredentialId>,
}

impl PendingHints {
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.offline.is_empty() && self.ended.is_empty()
    }
}

/// The user, if the principal is one.
fn user(principal: &Principal) -> Option<UserId> {
    match principal {
        Principal::User(user) => Some(*user),
        Principal::Agent(_) => None,
    }
}

/// Takes at most a batch.
fn take(from: &mut HashSet<UserId>) -> Vec<UserId> {
    let all = from.extract_if(|_| true);
    all.take(MAX_BATCH_USERS).collect()
}

/// Turns what the inboxes of these users have into wakes. Returns their number.
pub async fn collect(db: &Db, users: &[UserId]) -> Result<u64> {
    let mut count = 0;
    for some in users.chunks(MAX_BATCH_USERS) {
        loop {
            let collected = wakes::collect(db, some).await?;
            count += collected.wakes;
            if !collected.is_more {
                break;
            }
        }
    }
    Ok(count)
}

impl Waker {
    /// Notes users with something to push.
    pub fn note(&self, users: impl Iterator<Item = UserId>) {
        let mut users = users.peekable();
        if users.peek().is_some() {
            let fresh = &mut self.noted.lock().fresh;
            let room = MAX_NOTED_USERS.saturating_sub(fresh.len());
            fresh.extend(users.take(room));
            self.notify.notify_one();
        }
    }

    /// Notes the users that events went to.
    fn note_events(&self, events: &[AppendedEvent]) {
        let waking = events
            .iter()
            .filter(|event| rules::wakes(events::kind_of(&event.encoded)));
        let deliveries = waking.flat_map(|event| &event.deliveries);
        self.note(deliveries.filter_map(|delivery| user(&delivery.recipient)));
    }

    /// Notes users with a socket less.
    fn note_offline(&self, principals: &[Principal]) {
        let users = principals.iter().filter_map(user);
        self.noted.lock().offline.extend(users);
        self.notify.notify_one();
    }

    /// Notes credentials that have ended.
    fn note_ended(&self, credentials: &[CredentialId]) {
        self.noted.lock().ended.extend(credentials);
        self.notify.notify_one();
    }

    /// Notified when a wake is due.
    pub fn wake_due(&self) -> Arc<Notify> {
        self.wake_due.clone()
    }

    /// Listens to commits, to sockets that end and to credentials that end, and spawns the writer.
    pub fn start(
        &self,
        db: Db,
        backplane: &Backplane,
        slots: &Slots,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let waker = self.clone();
        backplane.on_published(move |events| waker.note_events(events));
        let waker = self.clone();
        slots.on_offline(move |principals| waker.note_offline(principals));
        let waker = self.clone();
        backplane
            .hub()
            .on_revoked(move |credentials| waker.note_ended(credentials));
        let (waker, stop) = (self.clone(), stop.clone());
        supervisor::spawn(tasks, "push.wake", move || {
            waker.clone().write(db.clone(), stop.clone())
        });
    }

    /// Writes the noted hints until `stop`, and the rest then.
    async fn write(self, db: Db, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.notify.notified() => tokio::time::sleep(GATHER_TIME).await,
                () = stop.cancelled() => break,
            }
            if !self.write_noted(&db).await {
                stop.run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL))
                    .await;
                self.notify.notify_one();
            }
        }
        // A lost hint is the sweep's, so a Postgres that is away does not hold up the end.
        while !self.noted.lock().is_empty() && self.write_noted(&db).await {}
    }

    /// Writes a batch of hints. False if Postgres is away; then they are noted again.
    async fn write_noted(&self, db: &Db) -> bool {
        let (fresh, offline, ended) = {
            let mut noted = self.noted.lock();
            let taken = (
                take(&mut noted.fresh),
                take(&mut noted.offline),
                std::mem::take(&mut noted.ended),
            );
            if !noted.is_empty() {
                self.notify.notify_one();
            }
            taken
        };
        let Err(error) = self.wake(db, &fresh, &offline, &ended).await else {
            return true;
        };
        error.log_in("push.wake", "the same users are tried again soon");
        let mut noted = self.noted.lock();
        noted.fresh.extend(fresh);
        noted.offline.extend(offline);
        noted.ended.extend(ended);
        false
    }

    async fn wake(
        &self,
        db: &Db,
        fresh: &[UserId],
        offline: &[UserId],
        ended: &[CredentialId],
    ) -> Result<()> {
        if !ended.is_empty() {
            store::delete_ended(db, ended).await?;
        }
        if !offline.is_empty() {
            wakes::unpark(db, offline).await?;
        }
        // The sweep asks this in its own statement.
        let subscribed = match fresh {
            [] => Vec::new(),
            fresh => wakes::subscribed(db, fresh).await?,
        };
        if collect(db, &subscribed).await? > 0 || !offline.is_empty() {
            self.wake_due.notify_one();
        }
        Ok(())
    }
}
