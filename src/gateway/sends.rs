//! The `message.send` frames of one socket: one at a time, so that they keep their order.

use std::{collections::VecDeque, pin::Pin};

use serde_json::Value;

use super::{Gateway, welcome::Guest};
use crate::{
    error::{Code, Result},
    features::messages::{Draft, Outgoing, Sent},
    ids::{ConversationId, Principal},
    limits::{Limiter, quotas::MB, table::Limit},
};

/// Sends that may wait for their turn; then the socket is not read until one is answered.
const PENDING: usize = 64;
/// Their bytes, likewise.
const PENDING_BYTES: usize = 2 * MB;

/// The answer of a send under way, with the reference it goes back with.
type Sending = Pin<Box<dyn Future<Output = (Value, Result<Sent>)> + Send>>;

/// What is under way and what waits.
#[derive(Default)]
pub struct Sends {
    sending: Option<Sending>,
    pending: VecDeque<(Value, ConversationId, String)>,
    pending_bytes: usize,
}

impl Sends {
    /// Whether more may come.
    pub fn has_room(&self) -> bool {
        self.pending.len() < PENDING && self.pending_bytes < PENDING_BYTES
    }

    /// A frame that has come.
    pub fn push(&mut self, reference: Value, conversation: ConversationId, body: String) {
        self.pending_bytes += body.len();
        self.pending.push_back((reference, conversation, body));
    }

    /// Starts the next one if none is under way.
    pub fn start_next(&mut self, gateway: &Gateway, guest: &Guest) {
        if self.sending.is_some() {
            return;
        }
        let Some((reference, conversation, body)) = self.pending.pop_front() else { return };
        self.pending_bytes -= body.len();
        let (sender, credential) = (guest.principal, guest.credential);
        let limiter = Limiter::detached(gateway.limits.clone());
        let outbox = gateway.outbox.clone();
        self.sending = Some(Box::pin(async move {
            let work = async {
                let too_large = match sender {
                    Principal::Agent(id) => {
                        limiter.take(Limit::AgentConversationSend, id).await?;
                        Code::WebhookPayloadTooLarge
                    }
                    Principal::User(id) => {
                        limiter.take(Limit::UserMessageSend, id).await?;
                        Code::MessageTooLarge
                    }
                };
                let draft = Draft::from_frame(&body, too_large)?;
                outbox.send(Outgoing { sender, credential, conversation, draft }).await
            };
            let outcome = work.await;
            (reference, outcome)
        }));
    }

    /// The answer of the one under way; never, if there is none. Cancel safe.
    pub async fn answered(&mut self) -> (Value, Result<Sent>) {
        let Some(sending) = &mut self.sending else { return std::future::pending().await };
        let answer = sending.await;
        self.sending = None;
        answer
    }
}
