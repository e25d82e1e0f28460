//! Webhooks: signed deliveries of an agent's events to an address of its owner. A webhook is the
//! third reader of the inbox, beside sockets and polls, and shares the agent's cursor with them.
//!
//! Promises: an event is delivered at least once, with the same delivery id in each attempt, until
//! the receiver answers 2xx or eight attempts have failed. The events of a conversation are
//! delivered one after another. Nothing is delivered while a socket of the agent is online. A
//! suspended webhook delivers nothing and what is under way is cut.
//!
//! A stop is an exception: a call of its own brings it at once, beside the deliveries. They leave it
//! out if that call was answered.
//!
//! Secrets are sealed at rest under a key of the server's secret. [`reseal`](mod@reseal) follows a
//! change of it. A secret that does not open makes its agent unreachable ([`unreadable`]).
//!
//! The [`dispatcher`] works off the turns and makes the attempts; [`rules`] decides after an
//! attempt whether and when the next one follows.
//!
//! Why: ADR 41.

mod client;
pub mod dispatcher;
pub(crate) mod http;
mod reseal;
mod rules;
mod seal;
pub mod signature;
mod store;
mod unreadable;

pub use blindpipe_protocol::webhooks::{
    DeliveryAttempt, DeliveryStatus, ReplyOutcome, WebhookCall, WebhookChallenge, WebhookEvent,
    WebhookStatus,
};

pub use self::{
    client::WebhookClient,
    dispatcher::Waker,
    reseal::{RESEAL_INTERVAL, count_seals, reseal},
    seal::SecretSeal,
    store::seals::Seals,
};
use crate::{
    db::{Db, batches::paced},
    error::Result,
    ids::{AgentId, EventId},
    metrics,
    work::{Tx, UnitOfWork},
};

/// The number of days that deliveries stay in the log.
const LOG_RETENTION_DAYS: i32 = 30;

/// The state of the handlers of this feature.
#[derive(Clone)]
pub struct Webhooks {
    pub work: UnitOfWork,
    pub seal: SecretSeal,
    pub client: WebhookClient,
    pub waker: Waker,
}

impl Webhooks {
    /// Looks at an agent's turn at once.
    fn wake(&self, agent: AgentId) {
        self.waker.note(std::iter::once(agent));
        self.waker.turn_due().notify_one();
    }
}

/// Makes the partitions of the coming days, and drops those of the log's past. Stops that no
/// delivery has passed go at that age as well.
pub async fn rotate_log(db: &Db) -> Result<()> {
    store::deliveries::rotate(db, LOG_RETENTION_DAYS).await?;
    while paced(store::stops::forget_old(db, LOG_RETENTION_DAYS)).await? {}
    Ok(())
}

/// Notes the event of a stop, so that the receivers of `agents` get it by calls of their own. The
/// transaction emits the event.
pub async fn announce_stop(tx: &Tx, agents: &[AgentId], event: EventId) -> Result<()> {
    store::stops::announce(tx, agents, event).await
}

/// Wakes agents whose wake-up was lost, and measures what waits.
pub async fn sweep(db: &Db) -> Result<()> {
    let mut late = 0;
    loop {
        let swept = store::turns::sweep(db).await?;
        late += swept.late;
        if !swept.is_more {
            break;
        }
    }
    let (due, age) = store::turns::backlog(db).await?;
    metrics::webhook_backlog(late, due, age);
    Ok(())
}

/// Removes the webhook of a deleted agent, and its log.
pub async fn erase(work: &UnitOfWork, agent: AgentId) -> Result<()> {
    let deleted = work.run("webhooks.erase", async |tx| store::delete(tx, agent).await);
    deleted.await?;
    while store::deliveries::forget(work.db(), agent).await? {}
    Ok(())
}
