//! Typing: whether a member writes. It is no event; sockets get a frame while the state lasts.

pub mod http;

use blindpipe_protocol::{
    frames::ServerFrame,
    messages::Sender,
    typing::{TypingNotice, TypingState},
};
use chrono::{DateTime, Utc};

use crate::{
    clock::Clock,
    delivery::{Backplane, Subscription, ephemeral::EphemeralEvent},
    error::{Code, Result},
    features::conversations::Audience,
    ids::{ConversationId, Principal},
    limits::{Limiter, quotas::TYPING_TTL, table::Limit},
};

/// The state of the handlers of this feature.
#[derive(Clone)]
pub struct Typing {
    pub clock: Clock,
    pub audience: Audience,
    pub backplane: Backplane,
}

impl Typing {
    /// Handles a `typing` frame of a socket. The socket itself does not receive it.
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
        self.publish_state(sender, device, conversation, state, Some(but))
            .await?;
        Ok(())
    }

    /// Tells the members' sockets, except `but`; returns until when it holds.
    async fn publish_state(
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
        let frame = ServerFrame::Typing(TypingNotice {
            conversation_id,
            sender: Sender::of(sender, device.map(str::to_owned)),
            state,
            expires_at: expires_at.into(),
        });
        let body = serde_json::to_string(&frame).unwrap_or_default();
        let event = EphemeralEvent::new(body.into());
        self.backplane.publish_ephemeral(&listeners, &event, but);
        Ok(expires_at)
    }
}
