//! The answer to a decided send, and its event.

use super::{
    SendRequest, Sent,
    batch::PendingSend,
    store::{Prior, Refusal, StoredMessage},
};
use crate::{
    error::{Code, Error, Result},
    events::Message,
    ids::Principal,
    inbox::AppendedEvent,
    limits::quotas::MAX_HOPS,
};

/// The answer to a send that was stored.
pub fn sent(send: &PendingSend, stored: &StoredMessage) -> Sent {
    Sent {
        message_id: send.id,
        conversation_id: send.request.conversation,
        seq: stored.seq,
        created_at: stored.created_at.into(),
        client_message_id: send.request.draft.client_message_id,
        duplicate: false,
    }
}

/// The `message.created` of a send that was stored.
pub fn event(send: &PendingSend, stored: StoredMessage) -> AppendedEvent {
    let draft = &send.request.draft;
    let recipients: Option<Vec<String>> = draft
        .recipients
        .as_ref()
        .map(|named| named.iter().map(|principal| principal.wire_id()).collect());
    let message = Message {
        id: send.id,
        conversation: send.request.conversation,
        seq: stored.seq,
        sender: send.request.sender,
        device_id: stored.device_id.as_deref(),
        payload: &draft.payload,
        deletion: None,
        recipients: recipients.as_deref(),
        client_message_id: draft.client_message_id,
        in_reply_to: draft.in_reply_to,
        refs: draft.refs.as_deref(),
        hop: stored.hop,
        created_at: stored.created_at,
    };
    AppendedEvent {
        encoded: message.encoded(),
        deliveries: stored.deliveries,
        trace: send.trace,
    }
}

/// The first send's answer, if this is the same message. Payloads are compared by meaning: spacing
/// and the order of names do not matter. The error tells the sender its own earlier message: a
/// restarted agent has encrypted anew, and finds out here that it has answered already.
pub fn replay(request: &SendRequest, prior: Prior) -> Result<Sent> {
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    let payload = &request.draft.payload;
    let is_same = prior.conversation == request.conversation
        && (prior.payload == *payload || parse(&prior.payload) == parse(payload));
    if !is_same {
        let payload = parse(&prior.payload).unwrap_or_default();
        return Err(Error::from(Code::IdempotencyConflict)
            .with("message_id", prior.id.to_string())
            .with("conversation_id", prior.conversation.to_string())
            .with("seq", prior.seq)
            .with("payload", payload));
    }
    Ok(Sent {
        message_id: prior.id,
        conversation_id: prior.conversation,
        seq: prior.seq,
        created_at: prior.created_at.into(),
        client_message_id: prior.client_message_id,
        duplicate: true,
    })
}

/// The error of a send that must not be stored.
pub fn refused(sender: Principal, refusal: Refusal) -> Error {
    match (refusal, sender) {
        (Refusal::Credential, Principal::User(_)) => Code::Unauthorized.into(),
        (Refusal::Credential, Principal::Agent(_)) => Code::AgentTokenInvalid.into(),
        (Refusal::NotMember, _) => Code::NotConversationMember.into(),
        (Refusal::RelationRevoked, _) => Code::RelationRevoked.into(),
        (Refusal::Plaintext, _) => Error::field(
            "payload.type",
            "encryption",
            "this conversation takes encrypted payloads only",
        ),
        (Refusal::UnknownReference, _) => Error::field(
            "in_reply_to",
            "reference",
            "is no message of this conversation",
        ),
        (Refusal::UnknownRef, _) => Error::field(
            "refs",
            "reference",
            "names what is no message of this conversation",
        ),
        (Refusal::TooManyHops, _) => Error::from(Code::AgentLoopDetected).with("limit", MAX_HOPS),
        (Refusal::UnknownRecipient, _) => Error::field(
            "recipients",
            "member",
            "names someone who is no member of this conversation",
        ),
    }
}
