//! The messages in a receiver's answer: `{messages: [{payload, client_message_id?}]}`. They take
//! the one send path, under the rules and budgets of the agent.
//!
//! A retry sends nothing twice: a reply without an id gets one that follows from the delivery. A
//! refused reply does not fail the delivery; the log shows its code.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::super::ReplyOutcome;
use crate::{
    error::{Code, Error, Result},
    features::messages::{Draft, MessageWriter, SendRequest},
    http::json,
    ids::{AgentId, ConversationId, Credential, DeliveryId, MessageId, Principal, TokenId},
    limits::{Limiter, Limits, table::Limit},
};

/// Most messages of an answer.
const MAX_REPLIES: usize = 3;
/// Longest wait for the agent's budget or a busy writer. The conversation waits meanwhile.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Sends replies.
#[derive(Clone)]
pub struct Replies {
    pub limits: Limits,
    pub message_writer: MessageWriter,
}

/// The place of an answer: a delivery to an agent.
pub struct Place {
    pub agent: AgentId,
    /// The token that authorises the messages.
    pub token: Option<TokenId>,
    pub conversation: Option<ConversationId>,
    pub delivery: DeliveryId,
}

/// The answer to a call with one event.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

/// The answer to a call with several events. A body that is no JSON object names no failure.
pub struct BatchAnswer<'a> {
    /// None if they cannot be read, so that any delivery may be among them.
    failed: Option<Vec<DeliveryId>>,
    replies: Vec<EventAnswer<'a>>,
}

#[derive(Deserialize)]
struct BatchFields<'a> {
    #[serde(borrow, default)]
    failed: Option<&'a RawValue>,
    #[serde(borrow, default)]
    replies: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct EventAnswer<'a> {
    delivery_id: DeliveryId,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

impl<'a> BatchAnswer<'a> {
    pub fn parse(body: &'a [u8]) -> Self {
        if !body.trim_ascii_start().starts_with(b"{") {
            return BatchAnswer {
                failed: Some(Vec::new()),
                replies: Vec::new(),
            };
        }
        let fields = serde_json::from_slice::<BatchFields<'a>>(body);
        let Some(fields) = fields.ok().filter(|_| json::check(body).is_ok()) else {
            return BatchAnswer {
                failed: None,
                replies: Vec::new(),
            };
        };
        let replies = fields.replies.map(|list| serde_json::from_str(list.get()));
        BatchAnswer {
            failed: match fields.failed {
                None => Some(Vec::new()),
                Some(list) => serde_json::from_str(list.get()).ok(),
            },
            replies: replies.and_then(Result::ok).unwrap_or_default(),
        }
    }

    /// Whether the receiver says that a delivery has failed.
    pub fn has_failed(&self, delivery: DeliveryId) -> bool {
        let failed = self.failed.as_ref();
        failed.is_none_or(|failed| failed.contains(&delivery))
    }

    /// The messages for a delivery.
    pub fn messages(&self, delivery: DeliveryId) -> Vec<&'a RawValue> {
        let own = self.replies.iter();
        let own = own.filter(|one| one.delivery_id == delivery);
        own.flat_map(|one| one.messages.iter().copied()).collect()
    }
}

impl Replies {
    /// Sends the messages of an answer, in their order. An answer of another form has none.
    pub async fn send(&self, place: &Place, body: &[u8]) -> Vec<ReplyOutcome> {
        let Ok(Answer { messages }) = serde_json::from_slice(body) else {
            return Vec::new();
        };
        if json::check(body).is_err() {
            return vec![outcome(Err(Code::ValidationError.into()))];
        }
        self.send_all(place, messages).await
    }

    /// Sends messages in their order.
    pub async fn send_all(&self, place: &Place, messages: Vec<&RawValue>) -> Vec<ReplyOutcome> {
        if messages.len() > MAX_REPLIES {
            return vec![outcome(Err(Code::ValidationError.into()))];
        }
        let mut outcomes = Vec::with_capacity(messages.len());
        for (n, message) in messages.into_iter().enumerate() {
            outcomes.push(outcome(self.send_one(place, n, message.get()).await));
        }
        outcomes
    }

    async fn send_one(&self, place: &Place, n: usize, text: &str) -> Result<MessageId> {
        let conversation = place.conversation.ok_or(Code::NotFound)?;
        let token = place.token.ok_or(Code::AgentTokenInvalid)?;
        let mut waited = Duration::ZERO;
        loop {
            let mut draft = Draft::from_frame(text, Code::WebhookPayloadTooLarge)?;
            if draft.key.is_none() {
                let id = derived(place.delivery, n);
                (draft.key, draft.client_message_id) = (Some(id.0), Some(id));
            }
            let request = SendRequest {
                sender: Principal::Agent(place.agent),
                credential: Credential::Token(token),
                conversation,
                draft,
            };
            let refusal = match self.try_send(place.agent, request).await {
                Ok(message) => return Ok(message),
                Err(refusal) => refusal,
            };
            let wait = refusal.wait().filter(|wait| waited + *wait <= MAX_WAIT);
            let Some(wait) = wait else {
                return Err(refusal);
            };
            tokio::time::sleep(wait).await;
            waited += wait;
        }
    }

    async fn try_send(&self, agent: AgentId, request: SendRequest) -> Result<MessageId> {
        Limiter::detached(self.limits.clone())
            .check(Limit::AgentConversationSend, agent)
            .await?;
        Ok(self.message_writer.send(request).await?.message_id)
    }
}

fn outcome(sent: Result<MessageId>) -> ReplyOutcome {
    match sent {
        Ok(message) => ReplyOutcome {
            message_id: Some(message),
            code: None,
        },
        Err(refusal) => ReplyOutcome {
            message_id: None,
            code: Some(code(&refusal)),
        },
    }
}

fn code(refusal: &Error) -> String {
    refusal.code().wire().to_owned()
}

/// The id of the reply `n` to a delivery. The times of a ULID and of a UUID of version 7 have the
/// same form.
fn derived(delivery: DeliveryId, n: usize) -> MessageId {
    let hash = Sha256::digest([delivery.0.as_bytes(), &(n as u64).to_be_bytes()[..]].concat());
    let mut bytes = *delivery.0.as_bytes();
    bytes[6..].copy_from_slice(&hash[..10]);
    MessageId::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Clock, random::Random};

    #[test]
    fn an_answer_names_what_has_failed() {
        let random = Random::new(Clock::default());
        let [a, b] = [(); 2].map(|()| DeliveryId::generate(&random));
        let failed = |body: &str| {
            let answer = BatchAnswer::parse(body.as_bytes());
            [a, b].map(|delivery| answer.has_failed(delivery))
        };
        for nothing in [
            "",
            "ok",
            " {}",
            r#"{"failed":[]}"#,
            r#"{"replies":1}"#,
            "[]",
        ] {
            assert_eq!(failed(nothing), [false, false], "{nothing}");
        }
        let one = format!(r#"{{"failed":["{b}"],"replies":{{}}}}"#);
        assert_eq!(failed(&one), [false, true]);
        let twice = format!(r#"{{"failed":["{b}"],"failed":[]}}"#);
        for unreadable in [r#"{"failed":["x"]}"#, r#"{"failed":1}"#, "{", &twice] {
            assert_eq!(failed(unreadable), [true, true], "{unreadable}");
        }
    }

    #[test]
    fn an_answer_has_messages_for_each_event() {
        let random = Random::new(Clock::default());
        let [a, b] = [(); 2].map(|()| DeliveryId::generate(&random));
        let body =
            format!(r#"{{"replies":[{{"delivery_id":"{b}","messages":[{{"payload":1}}]}}]}}"#);
        let answer = BatchAnswer::parse(body.as_bytes());
        assert!(answer.messages(a).is_empty());
        assert_eq!(answer.messages(b)[0].get(), r#"{"payload":1}"#);
    }

    #[test]
    fn a_reply_has_the_same_id_in_every_attempt() {
        let random = Random::new(Clock::default());
        let [a, b] = [(); 2].map(|()| DeliveryId::generate(&random));
        assert_eq!(derived(a, 0), derived(a, 0));
        assert_ne!(derived(a, 0), derived(a, 1));
        assert_ne!(derived(a, 0), derived(b, 0));
        let text = derived(a, 0).to_string();
        assert_eq!(text.parse::<MessageId>().expect("a ULID"), derived(a, 0));
    }
}
