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

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

impl Replies {
    /// Sends the messages of an answer, in their order. An answer of another form has none.
    pub async fn send(&self, place: &Place, body: &[u8]) -> Vec<ReplyOutcome> {
        let Ok(Answer { messages }) = serde_json::from_slice(body) else {
            return Vec::new();
        };
        if messages.len() > MAX_REPLIES || json::check(body).is_err() {
            let refusal = Code::ValidationError.into();
            return vec![outcome(Err(refusal))];
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
