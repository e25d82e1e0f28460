//! Push: a device without a socket is woken through the push service of its browser or phone. A push
//! says that something waits, and never what it says.
//!
//! Promises: an event that wakes a device is pushed at least once, unless the device acks it before,
//! or six attempts fail. A device gets one push per conversation in ten seconds; what was held back
//! goes as one at the window's end. Approvals, tool calls and grants are pushed at once. Nothing is
//! pushed while a socket of the device may still ack it. A subscription lives as long as the session
//! that made it.
//!
//! A commit is a hint ([`Waker`]). The sweep finds what hints have lost. Both only turn inbox entries
//! into wakes, which are rows. The [`dispatcher`](mod@dispatcher) claims the rows that are due.
//!
//! The push service's address and the device's keys are sealed at rest ([`EndpointSeal`]).

pub mod dispatcher;
pub mod encryption;
pub(crate) mod http;
mod rules;
mod seal;
mod store;
mod vapid;
mod waker;

use std::time::Duration;

pub use self::{seal::EndpointSeal, store::EndpointSeals, vapid::ServerKeys, waker::Waker};
use crate::{
    db::Db,
    egress::Egress,
    error::Result,
    ids::{SessionId, UserId},
    metrics,
    work::UnitOfWork,
};

/// Pause between two runs that seal endpoints anew.
pub const RESEAL_INTERVAL: Duration = Duration::from_secs(60);

/// The state of the handlers of this feature.
#[derive(Clone)]
pub struct Push {
    pub work: UnitOfWork,
    pub egress: Egress,
    pub seal: EndpointSeal,
    pub keys: ServerKeys,
    pub waker: Waker,
}

/// Turns inbox entries into wakes whose hint was lost, and measures what waits.
pub async fn sweep(db: &Db) -> Result<()> {
    loop {
        let piece = store::wakes::piece(db).await?;
        let late = waker::collect(db, &piece.users).await?;
        store::wakes::swept(db, piece.until).await?;
        metrics::push_late(late);
        if !piece.is_more {
            break;
        }
    }
    metrics::push_backlog(store::wakes::backlog(db).await?);
    Ok(())
}

/// Removes subscriptions whose session is over.
pub async fn forget(db: &Db) -> Result<()> {
    let mut after = Some(SessionId::NIL);
    while let Some(session) = after {
        after = store::forget(db, session).await?;
    }
    Ok(())
}

/// Removes the subscriptions of a deleted account.
pub async fn erase(work: &UnitOfWork, user: UserId) -> Result<()> {
    let erased = work.run("push.erase", async |tx| store::delete_of(tx, user).await);
    erased.await
}

/// The numbers of endpoints that are not sealed under the first key.
pub async fn count_seals(db: &Db, seal: &EndpointSeal) -> Result<EndpointSeals> {
    store::count_seals(db, &seal.current_key(), &seal.other_keys()).await
}

/// Follows a change of `SERVER_SECRET`: endpoints that are sealed under another key than the first
/// are sealed anew. Those that do not open are left.
pub async fn reseal(db: &Db, seal: &EndpointSeal) -> Result<()> {
    let keys = seal.other_keys();
    let mut after = SessionId::NIL;
    while !keys.is_empty() {
        let found = store::sealed_under(db, &keys, after).await?;
        let Some(last) = found.last() else { break };
        after = last.session;
        for row in &found {
            if let Some(endpoint) = seal.open(row.session, &row.sealed) {
                let sealed = seal.seal(row.session, &endpoint)?;
                store::replace(db, row, &sealed).await?;
            }
        }
    }
    let seals = count_seals(db, seal).await?;
    metrics::push_secrets(seals.old, seals.unreadable);
    Ok(())
}
