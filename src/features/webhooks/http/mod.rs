//! `PUT`, `GET`, `DELETE /agents/{agent_id}/webhook`, `POST /agents/{agent_id}/webhook/verify`,
//! `POST /agents/{agent_id}/webhook/rotate-secret`, `POST /agents/{agent_id}/webhook/test`.

mod deliveries;

use std::fmt::Display;

use axum::extract::State as Handle;
use blindpipe_protocol::{
    revocation::RevocationReason,
    text::Secret,
    webhooks::{
        DeletedWebhook, PutWebhook, RotateWebhookSecret, Webhook, WebhookTest, WebhookTestResult,
    },
};

pub use self::deliveries::{list_deliveries, redeliver};
use super::{
    DeliveryStatus, WebhookEvent, WebhookStatus, Webhooks,
    client::{Secrets, json},
    signature::WebhookSecret,
    store::{self, WebhookRow},
    unreadable,
};
use crate::{
    auth::owned::{ActingAs, NamedAgent},
    error::{Code, Error, Result},
    features::agents,
    http::{Data, Json, JsonOrNothing},
    ids::{AgentId, CredentialId},
    limits::{Limiter, quotas::MAX_WEBHOOK_EVENTS, table::Limit},
};

/// Seconds that a rotated secret signs beside its successor, unless the caller says otherwise.
const DEFAULT_OVERLAP_SECONDS: u32 = 86_400;
/// The most of them.
const MAX_OVERLAP_SECONDS: u32 = 604_800;

fn shown(row: WebhookRow, secret: Option<&WebhookSecret>) -> Webhook {
    Webhook {
        agent_id: row.agent,
        url: row.url,
        secret: secret.map(|secret| Secret::from(secret.expose())),
        status: row.status,
        max_events: row.max_events.unsigned_abs(),
        last_error: row.last_error,
        verified_at: row.verified_at.map(Into::into),
        previous_secret_valid_until: row.previous_valid_until.map(Into::into),
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

/// The secret that the caller has given in a field, or a new one.
fn chosen(given: Option<(&str, &Secret)>, webhooks: &Webhooks) -> Result<WebhookSecret> {
    match given {
        None => Ok(WebhookSecret::generate(webhooks.work.random())),
        Some((field, text)) => {
            WebhookSecret::parse(text.expose()).map_err(|rule| Error::field(field, "secret", rule))
        }
    }
}

/// The field of the body that has the secret.
fn given(body: &PutWebhook) -> Result<Option<(&str, &Secret)>> {
    let field = "webhook_secret";
    match (&body.secret, &body.webhook_secret) {
        (Some(one), Some(other)) if one != other => {
            Err(Error::field(field, "conflict", "differs from `secret`"))
        }
        (Some(secret), _) => Ok(Some(("secret", secret))),
        (None, Some(secret)) => Ok(Some((field, secret))),
        (None, None) => Ok(None),
    }
}

/// The most events of a call that the caller has chosen.
fn max_events(body: &PutWebhook) -> Result<i32> {
    let chosen = body.max_events.unwrap_or(1);
    match i32::try_from(chosen) {
        Ok(chosen) if (1..=MAX_WEBHOOK_EVENTS).contains(&chosen) => Ok(chosen),
        _ => Err(Error::field("max_events", "range", "must be from 1 to 50")),
    }
}

/// A suspended webhook may be the work of a thief of the agent's token. So its owner alone resumes
/// it.
fn may_resume(agent: &NamedAgent, row: Option<&WebhookRow>) -> Result<()> {
    let suspended = row.is_some_and(|row| row.status == WebhookStatus::Suspended);
    match agent.by {
        ActingAs::Itself(_) if suspended => Err(Code::Forbidden.into()),
        _ => Ok(()),
    }
}

impl Webhooks {
    /// The secrets of a webhook; none if they do not open. Errors: `FORBIDDEN` if a suspension has
    /// invalidated them.
    fn secrets(&self, row: &WebhookRow) -> Result<Option<Secrets>> {
        let open = |sealed: &Option<Vec<u8>>| self.seal.open(row.agent, sealed.as_ref()?);
        let sealed = row.sealed_secret.as_ref().ok_or(Code::Forbidden)?;
        let current = self.seal.open(row.agent, sealed);
        Ok(current.map(|current| Secrets {
            current,
            previous: open(&row.sealed_previous),
        }))
    }

    /// Charges a call to an address that may be a stranger's, to the account and to the address's
    /// origin. An address that is no URL any more is refused where it is called.
    async fn charge(&self, limiter: &Limiter, agent: &NamedAgent, url: &str) -> Result<()> {
        let Ok(origin) = self.client.egress.origin(url) else {
            return Ok(());
        };
        let account = match agent.by {
            ActingAs::Owner(user, _) => user,
            ActingAs::Itself(_) => store::owner(self.work.db(), agent.id).await?,
        };
        let budgets: [(Limit, &(dyn Display + Sync)); 2] = [
            (Limit::WebhookCall, &account),
            (Limit::WebhookOrigin, &origin),
        ];
        limiter.check_all(&budgets).await
    }

    /// Challenges the receiver and records the outcome. The caller's credential must still be valid
    /// after it.
    async fn verify(
        &self,
        agent: &NamedAgent,
        row: WebhookRow,
        secrets: &Secrets,
    ) -> Result<WebhookRow> {
        let error = self.client.challenge(agent.id, &row.url, secrets).await;
        let concluded = self.work.run("webhooks.verify", async |tx| {
            agents::lock_named(tx, agent).await?;
            store::conclude_challenge(tx, agent.id, row.credential, error).await
        });
        let row = concluded.await?.ok_or(Code::NotFound)?;
        self.wake(agent.id);
        Ok(row)
    }
}

/// `PUT /agents/{agent_id}/webhook`: sets the webhook of an agent and challenges its address.
///
/// Caller: the agent or its owner; the owner alone while the webhook is suspended. Limits:
/// `webhook_call`, 10/min per account, and `webhook_origin`, 120/min per origin. Body `{url,
/// secret?, max_events?}`, the secret also as `webhook_secret`. Calls under way to the address before are cut.
/// Answers 200 with [`Webhook`] and its `secret`, which is not shown again. Errors:
/// `VALIDATION_ERROR` (`url`, `secret`, `webhook_secret`, `max_events`), `FORBIDDEN`, `AGENT_NOT_REGISTERED`.
pub async fn put(
    agent: NamedAgent,
    limiter: Limiter,
    Handle(webhooks): Handle<Webhooks>,
    Json(body): Json<PutWebhook>,
) -> Result<Data<Webhook>> {
    let secret = chosen(given(&body)?, &webhooks)?;
    let max_events = max_events(&body)?;
    webhooks.charge(&limiter, &agent, &body.url).await?;
    webhooks.client.check(&body.url).await?;
    let sealed = webhooks.seal.seal(agent.id, &secret)?;
    let credential = CredentialId(webhooks.work.random().uuid_v7());
    let put = webhooks.work.run("webhooks.put", async |tx| {
        let locked = agents::lock_named(tx, &agent).await?;
        let before = store::lock(tx, agent.id).await?;
        may_resume(&agent, before.as_ref())?;
        if let Some(before) = &before {
            unreadable::revive(tx, &locked, before).await?;
        }
        let cut: Vec<CredentialId> = before.iter().map(|row| row.credential).collect();
        tx.revoke(cut, RevocationReason::TokenRevoked);
        store::put(tx, &agent, &body.url, credential, &sealed, max_events).await
    });
    let row = put.await?;
    let secrets = Secrets {
        current: secret,
        previous: None,
    };
    let row = webhooks.verify(&agent, row, &secrets).await?;
    Ok(Data(shown(row, Some(&secrets.current))))
}

/// `GET /agents/{agent_id}/webhook`: the webhook of an agent, without its secret.
///
/// Caller: the agent or its owner. Answers 200 with [`Webhook`]. Errors: `NOT_FOUND` if there is
/// none, `AGENT_NOT_REGISTERED`.
pub async fn get(agent: NamedAgent, Handle(webhooks): Handle<Webhooks>) -> Result<Data<Webhook>> {
    let row = found(&webhooks, agent.id).await?;
    Ok(Data(shown(row, None)))
}

async fn found(webhooks: &Webhooks, agent: AgentId) -> Result<WebhookRow> {
    let row = store::find(webhooks.work.db(), agent).await?;
    row.ok_or_else(|| Code::NotFound.into())
}

/// `DELETE /agents/{agent_id}/webhook`: removes the webhook of an agent.
///
/// Caller: the agent or its owner. Calls under way are cut; events wait in the inbox. The log of
/// deliveries stays. Answers 200 with [`DeletedWebhook`]. Errors: `NOT_FOUND`,
/// `AGENT_NOT_REGISTERED`.
pub async fn delete(
    agent: NamedAgent,
    Handle(webhooks): Handle<Webhooks>,
) -> Result<Data<DeletedWebhook>> {
    let deleted = webhooks.work.run("webhooks.delete", async |tx| {
        agents::lock_named(tx, &agent).await?;
        let before = store::lock(tx, agent.id).await?.ok_or(Code::NotFound)?;
        tx.revoke(vec![before.credential], RevocationReason::TokenRevoked);
        store::delete(tx, agent.id).await
    });
    let deleted_at = deleted.await?.ok_or(Code::NotFound)?;
    Ok(Data(DeletedWebhook {
        agent_id: agent.id,
        deleted_at: deleted_at.into(),
    }))
}

/// `POST /agents/{agent_id}/webhook/verify`: challenges the address of a webhook again.
///
/// Caller: the agent or its owner; the owner alone while the webhook is suspended. Limits as of the
/// PUT. A suspended webhook gets a new secret, which the answer shows, and so does one whose secret
/// the server cannot open any more. Answers 200 with [`Webhook`]. Errors:
/// `NOT_FOUND`, `FORBIDDEN`, `AGENT_NOT_REGISTERED`.
pub async fn verify(
    agent: NamedAgent,
    limiter: Limiter,
    Handle(webhooks): Handle<Webhooks>,
) -> Result<Data<Webhook>> {
    let row = found(&webhooks, agent.id).await?;
    may_resume(&agent, Some(&row))?;
    webhooks.charge(&limiter, &agent, &row.url).await?;
    let Ok(Some(secrets)) = webhooks.secrets(&row) else {
        return resume(&webhooks, &agent).await.map(Data);
    };
    let row = webhooks.verify(&agent, row, &secrets).await?;
    Ok(Data(shown(row, None)))
}

/// Verifies a webhook whose secret a suspension has invalidated, or does not open.
async fn resume(webhooks: &Webhooks, agent: &NamedAgent) -> Result<Webhook> {
    let current = WebhookSecret::generate(webhooks.work.random());
    let sealed = webhooks.seal.seal(agent.id, &current)?;
    let renewed = webhooks.work.run("webhooks.resume", async |tx| {
        let locked = agents::lock_named(tx, agent).await?;
        let row = store::lock(tx, agent.id).await?.ok_or(Code::NotFound)?;
        may_resume(agent, Some(&row))?;
        unreadable::revive(tx, &locked, &row).await?;
        store::renew_secret(tx, agent, &sealed).await?;
        Ok(row)
    });
    let secrets = Secrets {
        current,
        previous: None,
    };
    let row = webhooks.verify(agent, renewed.await?, &secrets).await?;
    Ok(shown(row, Some(&secrets.current)))
}

/// `POST /agents/{agent_id}/webhook/rotate-secret`: sets another secret.
///
/// Caller: the agent or its owner; the owner alone while the webhook is suspended. Body `{secret?,
/// overlap_seconds?}` or none. Until the overlap ends, both secrets sign, unless the server cannot
/// open the present one. Answers 200 with
/// [`Webhook`] and its `secret`, which is not shown again. Errors: `VALIDATION_ERROR`, `NOT_FOUND`,
/// `FORBIDDEN`, `AGENT_NOT_REGISTERED`.
pub async fn rotate_secret(
    agent: NamedAgent,
    Handle(webhooks): Handle<Webhooks>,
    JsonOrNothing(body): JsonOrNothing<RotateWebhookSecret>,
) -> Result<Data<Webhook>> {
    let overlap = body.overlap_seconds.unwrap_or(DEFAULT_OVERLAP_SECONDS);
    if overlap > MAX_OVERLAP_SECONDS {
        return Err(Error::field(
            "overlap_seconds",
            "range",
            "must be from 0 to 604800",
        ));
    }
    let given = body.secret.as_ref().map(|secret| ("secret", secret));
    let secret = chosen(given, &webhooks)?;
    let sealed = webhooks.seal.seal(agent.id, &secret)?;
    let rotated = webhooks.work.run("webhooks.rotate_secret", async |tx| {
        let locked = agents::lock_named(tx, &agent).await?;
        let row = store::lock(tx, agent.id).await?.ok_or(Code::NotFound)?;
        may_resume(&agent, Some(&row))?;
        let opens = webhooks
            .secrets(&row)
            .is_ok_and(|secrets| secrets.is_some());
        unreadable::revive(tx, &locked, &row).await?;
        let overlap = if opens { overlap } else { 0 };
        store::rotate_secret(tx, &agent, &sealed, overlap.into()).await
    });
    let row = rotated.await?;
    webhooks.wake(agent.id);
    Ok(Data(shown(row, Some(&secret))))
}

/// `POST /agents/{agent_id}/webhook/test`: posts a `webhook.test` event at once, to an address that
/// is verified. It is tried once.
///
/// Caller: the agent or its owner. Limits as of the PUT. Answers 200 with [`WebhookTestResult`],
/// whatever the receiver answers. Errors: `NOT_FOUND`, `FORBIDDEN` while the webhook is suspended or waits for its
/// verification, `AGENT_NOT_REGISTERED`.
pub async fn test(
    agent: NamedAgent,
    limiter: Limiter,
    Handle(webhooks): Handle<Webhooks>,
) -> Result<Data<WebhookTestResult>> {
    let row = found(&webhooks, agent.id).await?;
    if row.status == WebhookStatus::PendingVerification {
        return Err(Error::from(Code::Forbidden).with("status", row.status.as_str()));
    }
    let secrets = webhooks.secrets(&row)?;
    webhooks.charge(&limiter, &agent, &row.url).await?;
    let event = WebhookEvent::Test(WebhookTest {
        text: "This event tests the webhook.".to_owned(),
    });
    let (client, name) = (&webhooks.client, event.kind().name());
    let (id, attempt, is_success) = match secrets {
        Some(secrets) => {
            let (id, exchange) = client.call(agent.id, &row.url, &secrets, event).await;
            (id, exchange.attempt(1), exchange.is_success())
        }
        None => (client.next_id(), unreadable::attempt(&client.clock), false),
    };
    let status = if is_success {
        DeliveryStatus::Success
    } else {
        DeliveryStatus::Exhausted
    };
    store::deliveries::insert_test(
        webhooks.work.db(),
        agent.id,
        id,
        name,
        status,
        &json(&attempt),
    )
    .await?;
    Ok(Data(WebhookTestResult {
        delivery_id: id,
        status,
        response_status: attempt.response_status,
        duration_ms: attempt.duration_ms,
        error: attempt.error,
    }))
}
