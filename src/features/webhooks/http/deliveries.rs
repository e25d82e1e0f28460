//! `GET /agents/{agent_id}/deliveries`, `POST
//! /agents/{agent_id}/deliveries/{delivery_id}/redeliver`.

use axum::extract::State as Handle;
use blindpipe_protocol::webhooks::{DeliveriesQuery, WebhookDelivery};

use super::super::{
    Webhooks,
    store::{
        self,
        deliveries::{self, DeliveryRow},
        turns,
    },
};
use crate::{
    auth::owned::NamedAgent,
    error::{Code, Result},
    features::agents,
    http::{Data, List, Page, Path, Query, page},
    ids::{AgentId, DeliveryId, Principal},
    inbox::{Inbox, Reader},
};

fn shown(row: DeliveryRow) -> WebhookDelivery {
    // The log holds only what `DeliveryAttempt` has written.
    let attempts = row
        .log
        .iter()
        .filter_map(|entry| serde_json::from_str(entry).ok());
    WebhookDelivery {
        delivery_id: row.id,
        event: row.event,
        seq: row.seq,
        status: row.status,
        attempts: attempts.collect(),
        next_attempt_at: row.next_attempt_at.map(Into::into),
    }
}

/// `GET /agents/{agent_id}/deliveries?status=&limit=&cursor=`: the deliveries of the last 30 days,
/// newest first.
///
/// Caller: the agent or its owner. Answers 200 with a list of [`WebhookDelivery`]. Errors:
/// `VALIDATION_ERROR` (`status`, `limit`, `cursor`), `AGENT_NOT_REGISTERED`.
pub async fn list_deliveries(
    agent: NamedAgent,
    Handle(webhooks): Handle<Webhooks>,
    Query(page): Query<Page<DeliveryId>>,
    Query(filter): Query<DeliveriesQuery>,
) -> Result<List<WebhookDelivery>> {
    let db = webhooks.work.db();
    if let Some(cursor) = page.cursor
        && !deliveries::knows(db, agent.id, cursor).await?
    {
        return Err(page::unknown());
    }
    let rows = deliveries::list(db, agent.id, filter.status, page.cursor, page.rows()).await?;
    Ok(page.of(rows, |row| row.id).map(shown))
}

/// `POST /agents/{agent_id}/deliveries/{delivery_id}/redeliver`: asks for one more attempt at once,
/// with the same delivery id.
///
/// Caller: the agent or its owner. A delivery that is still open is hastened. Another one is
/// attempted once; that moves no cursor. Answers 200 with [`WebhookDelivery`]. Errors: `NOT_FOUND`,
/// also for `webhook.test`; `FORBIDDEN` unless the webhook is active; `CURSOR_EXPIRED` if the event
/// is no longer in the inbox; `AGENT_NOT_REGISTERED`.
pub async fn redeliver(
    agent: NamedAgent,
    Handle(webhooks): Handle<Webhooks>,
    Handle(inbox): Handle<Inbox>,
    Path((_, id)): Path<(AgentId, DeliveryId)>,
) -> Result<Data<WebhookDelivery>> {
    let bounds = inbox
        .bounds(&Reader::new(Principal::Agent(agent.id), ""))
        .await?;
    let redelivered = webhooks.work.run("webhooks.redeliver", async |tx| {
        agents::lock_named(tx, &agent).await?;
        let webhook = store::lock(tx, agent.id).await?.ok_or(Code::NotFound)?;
        let row = deliveries::replay(tx, agent.id, id).await?;
        let row = row.ok_or(Code::NotFound)?;
        let seq = row.seq.ok_or(Code::NotFound)?;
        if webhook.status != super::WebhookStatus::Active {
            return Err(Code::Forbidden.into());
        }
        if seq < bounds.oldest {
            return Err(bounds.expired());
        }
        turns::hasten(tx, agent.id).await?;
        Ok(row)
    });
    let row = redelivered.await?;
    webhooks.wake(agent.id);
    Ok(Data(shown(row)))
}
