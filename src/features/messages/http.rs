//! `POST /agents/{agent_id}/messages`, `POST /agents/{agent_id}/conversations/{conversation_id}/messages`,
//! `POST /conversations/{conversation_id}/messages`, `GET /agents/{agent_id}/messages/poll`.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;

use super::{Draft, MessageWriter, SendRequest, Sent};
use crate::{
    auth::{
        agent::{Agent, AgentToken, AgentTokens},
        user::UserToken,
    },
    cursor::Cursor,
    delivery::hub::{End, Registry, Subscription},
    error::{Code, Error, Result},
    events,
    features::agents::ReachabilityTracker,
    http::{Data, Path, Query, body},
    ids::{AgentId, ConversationId, Principal},
    inbox::{Inbox, Reader, Start},
    limits::{
        Limiter,
        quotas::{
            MAX_MESSAGE_BYTES, MAX_PAGE_EVENTS, MAX_POLL_WAIT_SECONDS, MESSAGE_ENVELOPE_BYTES,
        },
        table::Limit,
    },
};

/// `POST /agents/{agent_id}/messages`: an agent says something.
///
/// Caller: agent. Limit: `agent_message_send`, 5/s per agent. Body `{conversation_id, payload, client_message_id?,
/// in_reply_to?}`. Answers 201 with [`Sent`], 200 for a replay. Tells the members `message.created`.
/// Errors: `NOT_CONVERSATION_MEMBER`, `RELATION_REVOKED`, `IDEMPOTENCY_CONFLICT`, `AGENT_LOOP_DETECTED`,
/// `WEBHOOK_PAYLOAD_TOO_LARGE`.
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
    answer(
        message_writer
            .send(by_agent(caller, conversation, draft))
            .await?,
    )
}

/// `POST /agents/{agent_id}/conversations/{conversation_id}/messages`: the same, the conversation in the path.
///
/// Caller: agent. Limit: `agent_conversation_message_send`, 5/s per agent.
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
    answer(
        message_writer
            .send(by_agent(caller, conversation, draft))
            .await?,
    )
}

/// `POST /conversations/{conversation_id}/messages`: a user says something.
///
/// Caller: user. Limit: `user_message_send`, 10/s per user. Errors as for agents, `MESSAGE_TOO_LARGE` for size.
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
        credential: caller.session.0,
        conversation,
        draft,
    };
    answer(message_writer.send(request).await?)
}

fn by_agent(caller: AgentToken, conversation: ConversationId, draft: Draft) -> SendRequest {
    SendRequest {
        sender: Principal::Agent(caller.agent),
        credential: caller.token.0,
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

fn answer(sent: Sent) -> Result<Response> {
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
    Ok(response)
}

/// The query of a poll.
#[derive(Deserialize)]
pub struct PollQuery {
    cursor: Option<String>,
    limit: Option<i64>,
    wait: Option<u64>,
}

/// `GET /agents/{agent_id}/messages/poll?cursor=&limit=&wait=`: the events after a cursor.
///
/// Caller: agent. Limit: `agent_poll`, 60/min per agent. A cursor acks everything up to it; without one, reading starts
/// after the last ack. `wait` (0-25 s) holds an empty answer back until something comes. Answers 200 `{data: [event],
/// next_cursor}`. Errors: `CURSOR_EXPIRED`.
pub async fn poll(
    caller: Agent,
    limiter: Limiter,
    State(inbox): State<Inbox>,
    State(registry): State<Registry>,
    State(tokens): State<AgentTokens>,
    State(reachability): State<ReachabilityTracker>,
    Query(query): Query<PollQuery>,
) -> Result<Response> {
    let limit = query.limit.unwrap_or(50);
    if !(1..=MAX_PAGE_EVENTS).contains(&limit) {
        return Err(Error::field("limit", "range", "must be from 1 to 100"));
    }
    let wait = query.wait.unwrap_or(0);
    if wait > MAX_POLL_WAIT_SECONDS {
        return Err(Error::field("wait", "range", "must be from 0 to 25"));
    }
    let cursor = query
        .cursor
        .as_deref()
        .map(str::parse::<Cursor>)
        .transpose()?;
    limiter.check(Limit::AgentPoll, caller.id).await?;

    let reader = Reader::new(Principal::Agent(caller.id), "");
    let bounds = inbox.bounds(&reader).await?;
    let Start::After(after) = inbox.start(&bounds, cursor) else {
        return Err(inbox.expired(&bounds));
    };
    if cursor.is_some() && after > bounds.acked {
        inbox.ack_by_token(caller.id, caller.token, after).await?;
    }
    if cursor.is_some() {
        reachability.acked(&[caller.id]).await?;
    }
    // Listening begins before the first look, so that nothing falls in between.
    let subscription = (wait > 0)
        .then(|| registry.join(Subscription::new(reader.principal, caller.token.0, after)));
    let mut events = inbox.read(reader.principal, after, limit).await?;
    if let Some(subscription) = subscription.filter(|_| events.is_empty()) {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(wait)) => {}
            () = subscription.notified() => {
                if matches!(subscription.take().end, Some(End::EpochChanged)) {
                    return Err(inbox.expired(&inbox.bounds(&reader).await?));
                }
                // The token may have been revoked while we waited.
                AgentToken { agent: caller.id, token: caller.token }.verify(inbox.db(), &tokens.dead).await?;
                events = inbox.read(reader.principal, after, limit).await?;
            }
        }
    }
    let next = inbox.cursor(events.last().map_or(after, |last| last.seq));
    let objects: Vec<String> = events
        .iter()
        .map(|event| events::object(inbox.cursor(event.seq), &event.encoded))
        .collect();
    let text = format!(
        r#"{{"data":[{}],"next_cursor":"{next}"}}"#,
        objects.join(",")
    );
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    Ok((headers, text).into_response())
}
