//! The hub: finds the subscriptions of a principal or a credential, wakes and ends them.
//!
//! A subscription is a local reader of an inbox: a socket, or a poll that waits.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use blindpipe_protocol::revocation::RevocationReason;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::mpsc;

use super::{
    ephemeral::EphemeralEvent,
    heartbeat::Heartbeat,
    subscription::{End, Subscription, UNKNOWN_SEQ},
};
use crate::{
    events::EncodedEvent,
    ids::{CredentialId, PrincipalId},
    inbox::InboxHead,
    limits::quotas::NODE_LEASE,
    planted::PlantedBug,
};

/// A callback with the credentials that were revoked on any node.
type RevocationObserver = Box<dyn Fn(&[CredentialId]) + Send + Sync>;

/// After this long without a check of credentials in Postgres the node cannot know which of them
/// are revoked, so it delivers nothing.
const FENCE_AFTER: Duration = Duration::from_secs(10);

/// A principal that got its first subscription here or lost its last. The backplane then subscribes
/// or unsubscribes.
#[derive(Clone, Copy, Debug)]
pub struct SubscriptionChange(pub PrincipalId);

/// The tables behind the hub.
#[derive(Default)]
struct Subscriptions {
    by_principal: HashMap<PrincipalId, Vec<Arc<Subscription>>>,
    by_credential: HashMap<CredentialId, Vec<Arc<Subscription>>>,
}

impl Subscriptions {
    fn all(&self) -> impl Iterator<Item = &Arc<Subscription>> {
        self.by_principal.values().flatten()
    }

    fn of(&self, principal: PrincipalId) -> impl Iterator<Item = &Arc<Subscription>> {
        self.by_principal.get(&principal).into_iter().flatten()
    }
}

/// Removes a subscription from its row; true if the row is gone with it.
fn remove<K: Eq + Hash>(
    rows: &mut HashMap<K, Vec<Arc<Subscription>>>,
    key: K,
    subscription: &Arc<Subscription>,
) -> bool {
    let Entry::Occupied(mut row) = rows.entry(key) else {
        return false;
    };
    row.get_mut()
        .retain(|other| !Arc::ptr_eq(other, subscription));
    let is_empty = row.get().is_empty();
    if is_empty {
        row.remove();
    }
    is_empty
}

/// The subscriptions of this node. Clones share them.
#[derive(Clone)]
pub struct Hub {
    subscriptions: Arc<Mutex<Subscriptions>>,
    /// Set when the node drains. A new subscription then ends at once.
    closed: Arc<AtomicBool>,
    /// The last time that the node has checked its subscriptions' credentials.
    checked: Arc<Heartbeat>,
    heartbeat: Arc<Heartbeat>,
    /// Called with revoked credentials.
    on_revoked: Arc<RwLock<Vec<RevocationObserver>>>,
    changes: mpsc::UnboundedSender<SubscriptionChange>,
}

impl Hub {
    /// An empty hub, and a receiver of its [`SubscriptionChange`]s.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<SubscriptionChange>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let heartbeat = Arc::new(Heartbeat::new());
        let (subscriptions, closed) = (Arc::default(), Arc::default());
        let checked = Arc::new(Heartbeat::new());
        (
            Hub {
                subscriptions,
                closed,
                checked,
                heartbeat,
                on_revoked: Arc::default(),
                changes: sender,
            },
            receiver,
        )
    }

    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock()
    }

    /// Adds a subscription until the guard is dropped.
    pub fn join(&self, subscription: Subscription) -> SubscriptionGuard {
        let subscription = Arc::new(subscription);
        let mut subscriptions = self.subscriptions();
        let by_credential = &mut subscriptions.by_credential;
        let row = by_credential
            .entry(subscription.credential)
            .or_insert_with(|| Vec::with_capacity(1));
        row.push(subscription.clone());
        let by_principal = &mut subscriptions.by_principal;
        let row = by_principal
            .entry(subscription.principal)
            .or_insert_with(|| Vec::with_capacity(1));
        row.push(subscription.clone());
        if row.len() == 1 {
            self.subscription_changed(subscription.principal);
        }
        // The lock is still held, so `close` either returns this subscription or is seen here.
        if self.closed.load(Ordering::Acquire) {
            subscription.end(End::Drain(Duration::ZERO));
        }
        drop(subscriptions);
        SubscriptionGuard {
            hub: self.clone(),
            subscription,
        }
    }

    /// Ends all later subscriptions at once, and returns the present ones.
    pub fn close(&self) -> Vec<Arc<Subscription>> {
        let subscriptions = self.subscriptions();
        self.closed.store(true, Ordering::Release);
        subscriptions.all().cloned().collect()
    }

    fn subscription_changed(&self, principal: PrincipalId) {
        // The receiver is gone only while the node ends.
        self.changes.send(SubscriptionChange(principal)).ok();
    }

    fn leave(&self, subscription: &Arc<Subscription>) {
        let subscriptions = &mut *self.subscriptions();
        let credential = subscription.credential;
        remove(&mut subscriptions.by_credential, credential, subscription);
        let principal = subscription.principal;
        if remove(&mut subscriptions.by_principal, principal, subscription) {
            self.subscription_changed(principal);
        }
    }

    /// Whether nothing may be delivered for now.
    pub fn is_fenced(&self) -> bool {
        self.is_stale() || self.heartbeat.age() > NODE_LEASE
    }

    /// The callback for the node's heartbeat; its argument is true after a freeze that cost the
    /// node its lease.
    pub fn liveness(&self) -> impl Fn(bool) + Send + use<> {
        let hub = self.clone();
        move |frozen| hub.heartbeat(frozen)
    }

    /// Records a heartbeat. A freeze that cost the connections' slots ends every subscription.
    /// Nothing was delivered in between, because an overdue heartbeat fences the hub.
    fn heartbeat(&self, frozen: bool) {
        if frozen {
            self.for_each(|subscription| subscription.end(End::Drain(Duration::ZERO)));
        }
        self.heartbeat.beat();
    }

    /// Whether the last check of credentials is too long ago. A check that hangs counts as none.
    pub fn is_stale(&self) -> bool {
        self.checked.age() > FENCE_AFTER
    }

    /// Records that the credentials were checked as they are now. The reconciler then wakes the
    /// subscriptions that missed something.
    pub fn set_checked(&self) {
        self.checked.beat();
    }

    /// Whether `principal` has a subscription here.
    pub fn listens(&self, principal: PrincipalId) -> bool {
        self.subscriptions().by_principal.contains_key(&principal)
    }

    /// Queues an event for the recipients' subscriptions and adds these to `wakeups`.
    pub fn deliver(
        &self,
        heads: impl Iterator<Item = InboxHead>,
        encoded: Option<&EncodedEvent>,
        wakeups: &mut Wakeups,
    ) {
        let subscriptions = self.subscriptions();
        for InboxHead { principal, seq } in heads {
            for subscription in subscriptions.of(principal) {
                subscription.note(seq, encoded);
                wakeups.0.push(subscription.clone());
            }
        }
    }

    /// Queues an ephemeral event for the subscriptions of `principals`, except `but`.
    pub fn publish_ephemeral(
        &self,
        principals: &[PrincipalId],
        event: &EphemeralEvent,
        but: Option<&Subscription>,
    ) {
        let subscriptions = self.subscriptions();
        for subscription in principals
            .iter()
            .flat_map(|principal| subscriptions.of(*principal))
        {
            if !but.is_some_and(|but| std::ptr::eq(but, &**subscription)) {
                subscription.note_ephemeral(event);
            }
        }
    }

    /// Wakes the subscriptions of `principal` that are behind `head`; returns their number.
    pub fn wake_behind(&self, principal: PrincipalId, head: i64) -> u64 {
        let subscriptions = self.subscriptions();
        let behind = subscriptions.of(principal).filter(|subscription| {
            subscription.sent() < head || subscription.sent() == UNKNOWN_SEQ
        });
        behind.map(|subscription| subscription.raise(head)).count() as u64
    }

    /// Adds a callback for revoked credentials, for work that is no subscription.
    pub fn on_revoked(&self, observe: impl Fn(&[CredentialId]) + Send + Sync + 'static) {
        self.on_revoked.write().push(Box::new(observe));
    }

    /// Calls the callbacks of [`on_revoked`](Self::on_revoked).
    pub fn note_revoked(&self, credentials: &[CredentialId]) {
        for observe in &*self.on_revoked.read() {
            observe(credentials);
        }
    }

    /// Ends the subscriptions that one of `credentials` authorised.
    pub fn revoke(&self, credentials: &[CredentialId], reason: RevocationReason) {
        self.note_revoked(credentials);
        if PlantedBug::RevokedSocketStays.is_planted() {
            return;
        }
        let subscriptions = self.subscriptions();
        for credential in credentials {
            let row = subscriptions.by_credential.get(credential);
            for subscription in row.into_iter().flatten() {
                subscription.end(End::Revoked { reason });
            }
        }
    }

    /// Those of `credentials` that authorised a subscription here.
    pub fn authorised_by(&self, credentials: &[CredentialId]) -> Vec<CredentialId> {
        let subscriptions = self.subscriptions();
        let mut here = credentials.to_vec();
        here.retain(|one| subscriptions.by_credential.contains_key(one));
        here
    }

    /// Every credential that authorised a subscription here.
    pub fn credentials(&self) -> Vec<CredentialId> {
        self.subscriptions().by_credential.keys().copied().collect()
    }

    /// Every principal with a subscription here.
    pub fn principals(&self) -> Vec<PrincipalId> {
        self.subscriptions().by_principal.keys().copied().collect()
    }

    /// The last number that all subscriptions of a principal have, for those of `principals` with a
    /// subscription here. It is -1 where one has not begun.
    pub fn positions(&self, principals: &[PrincipalId]) -> Vec<InboxHead> {
        let subscriptions = self.subscriptions();
        let position = |principal: &PrincipalId| {
            let sent = subscriptions.of(*principal).map(|one| one.sent());
            let seq = sent
                .map(|seq| if seq == UNKNOWN_SEQ { -1 } else { seq })
                .min()?;
            Some(InboxHead {
                principal: *principal,
                seq,
            })
        };
        principals.iter().filter_map(position).collect()
    }

    /// Calls `with` for every subscription.
    pub fn for_each(&self, with: impl Fn(&Arc<Subscription>)) {
        self.subscriptions().all().for_each(with);
    }

    /// Every subscription that `is_wanted`.
    pub fn filtered(&self, is_wanted: impl Fn(&Subscription) -> bool) -> Vec<Arc<Subscription>> {
        let subscriptions = self.subscriptions();
        let wanted = subscriptions.all().filter(|one| is_wanted(one));
        wanted.cloned().collect()
    }
}

/// Subscriptions with new events. A subscription with several new events wakes once and writes them
/// together.
#[derive(Default)]
pub struct Wakeups(Vec<Arc<Subscription>>);

impl Wakeups {
    /// Wakes the collected subscriptions and empties the list.
    pub fn wake(&mut self) {
        self.0
            .drain(..)
            .for_each(|subscription| subscription.wake());
    }

    /// Whether there are too many to wait for more.
    pub fn are_many(&self) -> bool {
        self.0.len() > 16 * 1024
    }
}

/// A subscription of the hub; ends on drop.
pub struct SubscriptionGuard {
    hub: Hub,
    subscription: Arc<Subscription>,
}

impl SubscriptionGuard {
    /// A handle that can end the subscription.
    pub fn subscription(&self) -> Arc<Subscription> {
        self.subscription.clone()
    }
}

impl std::ops::Deref for SubscriptionGuard {
    type Target = Subscription;

    fn deref(&self) -> &Subscription {
        &self.subscription
    }
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        self.hub.leave(&self.subscription);
    }
}
