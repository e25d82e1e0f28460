//! The webhook of an agent, as its owner has it.

use blindpipe_protocol::{
    ids::{AgentId, DeliveryId},
    webhooks::{
        DeletedWebhook, DeliveryStatus, PutWebhook, RotateWebhookSecret, Webhook, WebhookDelivery,
        WebhookTestResult,
    },
};
use serde_json::json;

use super::Client;
use crate::{Result, transport::Call};

/// The webhook of an agent, and the log of its deliveries.
pub struct Webhooks<'a> {
    client: &'a Client,
    agent_id: AgentId,
}

impl Client {
    /// The webhook of an agent of this person.
    #[must_use]
    pub const fn webhooks(&self, agent_id: AgentId) -> Webhooks<'_> {
        Webhooks {
            client: self,
            agent_id,
        }
    }
}

impl Webhooks<'_> {
    fn path(&self, rest: &str) -> String {
        format!("/agents/{}/{rest}", self.agent_id)
    }

    /// The webhook, without its secret.
    ///
    /// # Errors
    ///
    /// Every refusal of the service; 404 if there is none.
    pub async fn get(&self) -> Result<Webhook> {
        self.client
            .http()
            .data(Call::get(self.path("webhook")))
            .await
    }

    /// Has events delivered to `url`. The service asks the receiver at once, and answers the secret
    /// that it made.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn set(&self, url: &str) -> Result<Webhook> {
        self.set_batched(url, 1).await
    }

    /// As [`set`](Self::set), with up to `max_events` events in a call, 1 to 50.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn set_batched(&self, url: &str, max_events: u32) -> Result<Webhook> {
        let body = PutWebhook {
            url: url.to_owned(),
            secret: None,
            webhook_secret: None,
            max_events: Some(max_events),
        };
        let call = Call::put(self.path("webhook"), &body);
        self.client.http().data(call).await
    }

    /// Has the service ask the receiver again whether it is the agent's.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn verify(&self) -> Result<Webhook> {
        let call = Call::post(self.path("webhook/verify"), &json!({}));
        self.client.http().data(call).await
    }

    /// Another secret, which the service makes and answers. The present one signs too for `overlap_seconds`,
    /// a day by default.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn rotate_secret(&self, overlap_seconds: Option<u32>) -> Result<Webhook> {
        let body = RotateWebhookSecret {
            secret: None,
            overlap_seconds,
        };
        let call = Call::post(self.path("webhook/rotate-secret"), &body);
        self.client.http().data(call).await
    }

    /// Sends the receiver a test.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn test(&self) -> Result<WebhookTestResult> {
        let call = Call::post(self.path("webhook/test"), &json!({}));
        self.client.http().data(call).await
    }

    /// Ends the webhook.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn delete(&self) -> Result<DeletedWebhook> {
        let call = Call::delete(self.path("webhook"));
        self.client.http().data(call).await
    }

    /// A page of the log of deliveries, newest first.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn deliveries(
        &self,
        status: Option<DeliveryStatus>,
        cursor: Option<String>,
    ) -> Result<(Vec<WebhookDelivery>, Option<String>)> {
        let call = Call::get(self.path("deliveries"))
            .query("status", status.map(DeliveryStatus::as_str))
            .query("cursor", cursor);
        let page = self.client.http().page(call).await?;
        Ok((page.data, page.next_cursor))
    }

    /// Delivers an event once more.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn redeliver(&self, id: DeliveryId) -> Result<WebhookDelivery> {
        let path = self.path(&format!("deliveries/{id}/redeliver"));
        self.client.http().data(Call::post(path, &json!({}))).await
    }
}
