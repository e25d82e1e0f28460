//! Webhooks: `/agents/{agent_id}/webhook`, its deliveries, and the bodies that a receiver gets.

use serde::{Deserialize, Serialize};

use crate::{
    files::ObjectRef,
    ids::{AgentId, DeliveryId, EventId, MessageId},
    messages::SendMessage,
    text::Secret,
    time::Timestamp,
};

words! {
    /// The status of a webhook.
    pub enum WebhookStatus {
        /// The address has not answered its challenge yet; nothing is delivered.
        PendingVerification = "pending_verification",
        /// Events are delivered.
        Active = "active",
        /// The agent's tokens were revoked, and the secrets with them; nothing is delivered.
        Suspended = "suspended",
    }
}

words! {
    /// The status of a delivery.
    pub enum DeliveryStatus {
        /// An attempt is under way or about to begin.
        Pending = "pending",
        /// An attempt was answered with 2xx.
        Success = "success",
        /// The last attempt failed, and another one follows.
        Failed = "failed",
        /// No attempt follows: eight failed, the receiver answered 410, or the agent has acked the
        /// event in another way.
        Exhausted = "exhausted",
    }
}

/// The body of `PUT /agents/{agent_id}/webhook`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PutWebhook {
    /// The address: https, and public.
    #[cfg_attr(feature = "schema", schema(pattern = "^https?://[^/]+"))]
    pub url: String,
    /// The secret; generated if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// The secret under another name. Beside `secret` it must be equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_secret: Option<Secret>,
    /// The most events of a call, 1 to 50; 1 if omitted. With more than one, each call for events of the
    /// inbox has the form of [`WebhookBatch`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 50, default = 1))]
    pub max_events: Option<u32>,
}

/// A webhook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Webhook {
    /// The agent.
    pub agent_id: AgentId,
    /// The address.
    pub url: String,
    /// The secret. Only the answer that sets it has it; other answers omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Whether events are delivered.
    pub status: WebhookStatus,
    /// The most events of a call.
    pub max_events: u32,
    /// The reason that the last challenge or attempt failed; null after a success.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub last_error: Option<String>,
    /// The time of the last verified challenge; null if none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub verified_at: Option<Timestamp>,
    /// The time until which the previous secret signs too; null if there is none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub previous_secret_valid_until: Option<Timestamp>,
    /// The time of the first `PUT`.
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
}

/// The answer to `DELETE /agents/{agent_id}/webhook`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeletedWebhook {
    /// The agent.
    pub agent_id: AgentId,
    /// The time of the deletion.
    pub deleted_at: Timestamp,
}

/// The body of `POST /agents/{agent_id}/webhook/rotate-secret`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RotateWebhookSecret {
    /// The new secret; generated if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Seconds for which the present secret signs too, 0 to 604,800; a day if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(minimum = 0, maximum = 604_800, default = 86_400)
    )]
    pub overlap_seconds: Option<u32>,
}

/// The answer to `POST /agents/{agent_id}/webhook/test`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookTestResult {
    /// The delivery, which the log has too.
    pub delivery_id: DeliveryId,
    /// `success` or `exhausted`, because a test is not repeated.
    pub status: DeliveryStatus,
    /// The receiver's status; null if it gave none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub response_status: Option<u16>,
    /// Milliseconds of the exchange.
    pub duration_ms: u64,
    /// The reason of a failure.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub error: Option<String>,
}

/// A delivery of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookDelivery {
    /// The delivery; the next page starts after it.
    pub delivery_id: DeliveryId,
    /// The name of its event.
    pub event: String,
    /// The event's number in the agent's inbox; null for `webhook.test`.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub seq: Option<i64>,
    /// The state of the delivery.
    pub status: DeliveryStatus,
    /// The finished attempts, oldest first.
    pub attempts: Vec<DeliveryAttempt>,
    /// The time of the next attempt; null if none follows or it is under way.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub next_attempt_at: Option<Timestamp>,
}

/// A finished attempt of a delivery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeliveryAttempt {
    /// The number of the attempt, from 1.
    pub n: i32,
    /// The time of its start.
    pub at: Timestamp,
    /// Milliseconds of the exchange.
    pub duration_ms: u64,
    /// The receiver's status; null if it gave none.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub response_status: Option<u16>,
    /// The reason of a failure, as a word; null for a success.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub error: Option<String>,
    /// The outcome of each reply in the answer; absent if there was none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replies: Vec<ReplyOutcome>,
}

/// The outcome of a reply in a receiver's answer: a message or a refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReplyOutcome {
    /// The message; absent if the reply was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The error code of the refusal; absent if the reply was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// The query of `GET /agents/{agent_id}/deliveries`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeliveriesQuery {
    /// Only deliveries of this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DeliveryStatus>,
}

/// The body of a POST that is no event of the inbox: `webhook.verify` and `webhook.test`. Events of
/// the inbox have `cursor`, `seq` and perhaps `conversation_id` as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookCall {
    /// The delivery; the same in all attempts.
    pub delivery_id: DeliveryId,
    /// The number of the attempt, from 1.
    pub attempt: i32,
    /// The agent.
    pub agent_id: AgentId,
    /// The id of the event.
    pub event_id: EventId,
    /// The time of the event.
    pub created_at: Timestamp,
    /// The name and data of the event: `event` and `data`.
    #[serde(flatten)]
    pub event: WebhookEvent,
}

catalogue! {
    /// The events that a webhook gets outside of the inbox: (name on the wire, recipients).
    pub enum WebhookEventKind: (&'static str, &'static str) {
        Verify = ("webhook.verify", "the receiver of the agent's webhook");
        Test   = ("webhook.test",   "the receiver of the agent's webhook");
    }
}

impl WebhookEventKind {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The principals that get it, in words.
    pub const fn recipients(self) -> &'static str {
        self.row().1
    }
}

/// The events that a webhook gets outside of the inbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "event", content = "data")]
pub enum WebhookEvent {
    /// `webhook.verify`: the receiver must answer 200 with the challenge.
    #[serde(rename = "webhook.verify")]
    Verify(WebhookChallenge),
    /// `webhook.test`: the owner tries the webhook.
    #[serde(rename = "webhook.test")]
    Test(WebhookTest),
}

impl WebhookEvent {
    /// The kind of the event.
    pub fn kind(&self) -> WebhookEventKind {
        match self {
            WebhookEvent::Verify(_) => WebhookEventKind::Verify,
            WebhookEvent::Test(_) => WebhookEventKind::Test,
        }
    }
}

/// The `data` of an event whose body would exceed 1 MB: the object holds the event's own data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReferencedData {
    /// The object, with an address of this attempt.
    pub object_ref: ObjectRef,
}

/// A challenge in both directions: the data of `webhook.verify`, and the receiver's answer to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookChallenge {
    /// Random characters.
    pub challenge: String,
}

/// The data of `webhook.test`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookTest {
    /// A text for the log of the receiver.
    pub text: String,
}

/// The body of a receiver's 2xx that sends messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookReplies {
    /// Messages of the agent to the event's conversation, at most 3; `conversation_id` is ignored. The id of a message without
    /// one is derived from the delivery.
    pub messages: Vec<SendMessage>,
}

/// The body of a POST with several events of the inbox, for a webhook whose `max_events` is above 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookBatch {
    /// The agent.
    pub agent_id: AgentId,
    /// The events, each in the form that a call of its own has. Those of a conversation are in their
    /// order.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub events: Vec<serde_json::Value>,
}

/// The body of a receiver's 2xx to a [`WebhookBatch`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookBatchReplies {
    /// The deliveries that have failed. They come again, and so do those after them in their
    /// conversations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<DeliveryId>,
    /// The messages of the agent in answer to each event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replies: Vec<WebhookEventReplies>,
}

/// Messages in answer to an event of a [`WebhookBatch`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WebhookEventReplies {
    /// The delivery of the event.
    pub delivery_id: DeliveryId,
    /// As in [`WebhookReplies`].
    pub messages: Vec<SendMessage>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_written_under_the_name_of_its_kind() {
        let test = WebhookEvent::Test(WebhookTest {
            text: "t".to_owned(),
        });
        let text = serde_json::to_string(&test).expect("JSON");
        let name = test.kind().name();
        assert_eq!(
            text,
            format!(r#"{{"event":"{name}","data":{{"text":"t"}}}}"#)
        );
        assert_eq!(WebhookEventKind::ALL.len(), 2);
    }

    #[test]
    fn a_call_has_its_event_and_data_side_by_side() {
        let text = r#"{"delivery_id":"0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e","attempt":1,"agent_id":"0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8f","event_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","created_at":"2026-03-01T12:00:00.000Z","event":"webhook.verify","data":{"challenge":"abc"}}"#;
        let call: WebhookCall = serde_json::from_str(text).expect("a call");
        let WebhookEvent::Verify(WebhookChallenge { challenge }) = &call.event else {
            panic!("a challenge: {call:?}");
        };
        assert_eq!(challenge, "abc");
        assert_eq!(call.event.kind(), WebhookEventKind::Verify);
        assert_eq!(serde_json::to_string(&call).expect("JSON"), text);
    }
}
