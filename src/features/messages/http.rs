//! `POST /agents/{agent_id}/messages`, `POST
//! /agents/{agent_id}/conversations/{conversation_id}/messages`, `POST
//! /conversations/{conversation_id}/messages`.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};

use super::{Draft, MessageWriter, SendRequest, Sent};
use crate::{
    auth::{agent::AgentToken, user::UserToken},
    error::{Code, Error, Result},
    http::{Data, Path, body},
    ids::{AgentId, ConversationId, Credential, Principal},
    limits::{
        Limiter,
        quotas::{MAX_MESSAGE_BYTES, MESSAGE_ENVELOPE_BYTES},
        table::Limit,
    },
};

/// `POST /agents/{agent_id}/messages`: sends a message as an agent.
///
/// Caller: agent. Limit: `agent_message_send`, 5/s per agent. Body `{conversation_id, payload,
/// client_message_id?, in_reply_to?}`. Answers 201 with [`Sent`], 200 for a replay. Publishes
/// `message.created` to the members. Errors: `NOT_CONVERSATION_MEMBER`, `RELATION_REVOKED`,
/// `IDEMPOTENCY_CONFLICT`, `AGENT_LOOP_DETECTED`, `WEBHOOK_PAYLOAD_TOO_LARGE`.
pub async fn send_as_agent(
    caller: AgentToken,
    limiter: Limiter,
    State(message_writer): State<MessageWriter>,
    request: Request,
) -> Result<Response> {
    let read = async {
        let (draft, conversation) = read_draft(request, Code::WebhookPayloadTooLarge).await?;
        let missing = || {
            Error::field(
                "conversation_id",
                "required",
                "missing field `conversation_id`",
            )
        };
        Ok((draft, conversation.ok_or_else(missing)?))
    };
    let (draft, conversation) = limiter
        .check_during(Limit::AgentMessageSend, caller.agent, read)
        .await?;
    let sent = message_writer
        .send(by_agent(caller, conversation, draft))
        .await?;
    Ok(answer(sent))
}

/// `POST /agents/{agent_id}/conversations/{conversation_id}/messages`: sends a message as an agent,
/// with the conversation in the path.
///
/// Caller: agent. Limit: `agent_conversation_message_send`, 5/s per agent. The rest is as for `POST
/// /agents/{agent_id}/messages`.
pub async fn send_as_agent_to(
    caller: AgentToken,
    limiter: Limiter,
    State(message_writer): State<MessageWriter>,
    Path((_, conversation)): Path<(AgentId, ConversationId)>,
    request: Request,
) -> Result<Response> {
    let read = read_draft(request, Code::WebhookPayloadTooLarge);
    let (draft, _) = limiter
        .check_during(Limit::AgentConversationSend, caller.agent, read)
        .await?;
    let sent = message_writer
        .send(by_agent(caller, conversation, draft))
        .await?;
    Ok(answer(sent))
}

/// `POST /conversations/{conversation_id}/messages`: sends a message as a user.
///
/// Caller: user. Limit: `user_message_send`, 10/s per user. Errors: as for agents, but
/// `MESSAGE_TOO_LARGE` for size.
pub async fn send_as_user(
    caller: UserToken,
    limiter: Limiter,
    State(message_writer): State<MessageWriter>,
    Path(conversation): Path<ConversationId>,
    request: Request,
) -> Result<Response> {
    let read = read_draft(request, Code::MessageTooLarge);
    let (draft, _) = limiter
        .check_during(Limit::UserMessageSend, caller.user, read)
        .await?;
    let request = SendRequest {
        sender: Principal::User(caller.user),
        credential: Credential::Session(caller.session),
        conversation,
        draft,
    };
    Ok(answer(message_writer.send(request).await?))
}

fn by_agent(caller: AgentToken, conversation: ConversationId, draft: Draft) -> SendRequest {
    SendRequest {
        sender: Principal::Agent(caller.agent),
        credential: Credential::Token(caller.token),
        conversation,
        draft,
    }
}

async fn read_draft(
    request: Request<Body>,
    too_large: Code,
) -> Result<(Draft, Option<ConversationId>)> {
    let (parts, content) = request.into_parts();
    let bytes = body::read(
        &parts,
        content,
        MAX_MESSAGE_BYTES + MESSAGE_ENVELOPE_BYTES,
        too_large,
    )
    .await?;
    Draft::from_body(&bytes, &parts.headers, too_large)
}

fn answer(sent: Sent) -> Response {
    let (status, duplicate) = if sent.duplicate {
        (StatusCode::OK, true)
    } else {
        (StatusCode::CREATED, false)
    };
    let mut response = (status, Data(sent)).into_response();
    if duplicate {
        response
            .headers_mut()
            .insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    response
}
