//! Typing: whether a member writes. No event; sockets hear it while it lasts.

pub mod http;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{
    clock::Clock,
    delivery::{Backplane, Subscription, ephemeral::EphemeralEvent},
    error::{Code, Result},
    events::Sender,
    features::conversations::Audience,
    ids::{ConversationId, Principal},
    limits::{Limiter, quotas::TYPING_TTL, table::Limit},
};

/// Whether somebody writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TypingState {
    Started,
    Stopped,
}

/// The frame that sockets are sent.
#[derive(Serialize)]
#[serde(tag = "type", rename = "typing")]
struct Frame<'a> {
    conversation_id: ConversationId,
    sender: Sender<'a>,
    state: TypingState,
    #[serde(serialize_with = "crate::clock::as_iso")]
    expires_at: DateTime<Utc>,
}

/// What the handlers of this feature work with.
#[derive(Clone)]
pub struct Typing {
    pub clock: Clock,
    pub audience: Audience,
    pub backplane: Backplane,
}

impl Typing {
    /// Handles a `typing` frame of a socket. The socket itself does not hear it.
    pub async fn frame(
        &self,
        limiter: &Limiter,
        sender: Principal,
        device: &str,
        conversation: ConversationId,
        state: TypingState,
        but: &Subscription,
    ) -> Result<()> {
        match sender {
            Principal::Agent(id) => limiter.check(Limit::AgentTyping, id).await?,
            Principal::User(id) => {
                let key = format!("typing:{id}");
                limiter.check(Limit::DefaultUser, key).await?;
            }
        }
        let device = Some(device).filter(|device| !device.is_empty());
        self.publish(sender, device, conversation, state, Some(but))
            .await?;
        Ok(())
    }

    /// Tells the members' sockets, except `but`; returns until when it holds.
    async fn publish(
        &self,
        sender: Principal,
        device: Option<&str>,
        conversation_id: ConversationId,
        state: TypingState,
        but: Option<&Subscription>,
    ) -> Result<DateTime<Utc>> {
        let listeners = self
            .audience
            .of_speaker(sender, conversation_id, Code::NotFound)
            .await?;
        let now = self.clock.now();
        let expires_at = match state {
            TypingState::Started => now + TYPING_TTL,
            TypingState::Stopped => now,
        };
        let frame = Frame {
            conversation_id,
            sender: Sender::of(sender, device),
            state,
            expires_at,
        };
        let body = serde_json::to_string(&frame).unwrap_or_default();
        let event = EphemeralEvent::new(body.into());
        self.backplane.publish_ephemeral(&listeners, &event, but);
        Ok(expires_at)
    }
}
