//! `POST /agents/{agent_id}/artifact-requests`, `POST /artifact-requests/{request_id}/claim`,
//! `POST /artifact-requests/{request_id}/response`.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::{
    text::RequestId,
    tool_calls::{ClaimArtifact, ToolCallState},
};

use super::{RequestedCall, Responder};
use crate::{
    auth::{agent::Agent, user::User},
    error::{Code, Result},
    http::{Data, JsonOrNothing, Path, body},
    limits::quotas::{MAX_MESSAGE_BYTES, MESSAGE_ENVELOPE_BYTES},
    work::UnitOfWork,
};

/// The route of `artifact_request`, whose budget its frame shares.
pub const REQUEST_ROUTE: &str = "POST /agents/{agent_id}/artifact-requests";
/// The route of `artifact_response`, whose budget its frame shares.
pub const RESPONSE_ROUTE: &str = "POST /artifact-requests/{request_id}/response";

async fn read(request: Request<Body>, too_large: Code) -> Result<bytes::Bytes> {
    let (parts, content) = request.into_parts();
    let most = MAX_MESSAGE_BYTES + MESSAGE_ENVELOPE_BYTES;
    body::read(&parts, content, most, too_large).await
}

/// `POST /agents/{agent_id}/artifact-requests`: asks the devices of a user to run a tool.
///
/// Caller: agent. Body `{request_id, conversation_id, user_id?, tool, scope, device_id?, payload}`.
/// Answers 201 with the [`ToolCallState`]: `pending`, or `denied` (`scope_not_granted`) without a
/// grant. A `request_id` seen before answers 200 with the present state. Publishes
/// `artifact_request` to the user, or `artifact_response` to the agent. Errors: `NOT_FOUND`,
/// `RELATION_REQUIRED`, `SCOPE_NOT_DECLARED` (the manifest names another scope for the tool),
/// `IDEMPOTENCY_CONFLICT`, `WEBHOOK_PAYLOAD_TOO_LARGE`.
pub async fn request(
    agent: Agent,
    State(work): State<UnitOfWork>,
    request: Request,
) -> Result<Response> {
    let bytes = read(request, Code::WebhookPayloadTooLarge).await?;
    let body = super::read_request(&bytes)?;
    let RequestedCall { state, replayed } = super::request(&work, agent, &body).await?;
    if !replayed {
        return Ok((StatusCode::CREATED, Data(state)).into_response());
    }
    let replay = HeaderValue::from_static("true");
    Ok(([("idempotent-replayed", replay)], Data(state)).into_response())
}

/// `POST /artifact-requests/{request_id}/claim`: keeps a tool call for the caller's device, before
/// the device runs it.
///
/// Caller: the user who was asked, on a device that was asked. Body `{agent_id?}`, or none. From now
/// on no other device may claim or answer the call; the device may claim it again. Answers 200 with
/// the [`ToolCallState`]. Errors: as of the response.
pub async fn claim(
    user: User,
    State(work): State<UnitOfWork>,
    Path(RequestId(request_id)): Path<RequestId>,
    JsonOrNothing(body): JsonOrNothing<ClaimArtifact>,
) -> Result<Data<ToolCallState>> {
    let claimed = super::claim(&work, Responder::of(&user), &request_id, body.agent_id).await;
    claimed.map(Data)
}

/// `POST /artifact-requests/{request_id}/response`: answers a tool call for the caller's device.
///
/// Caller: the user who was asked, on a device that was asked. Body
/// `{agent_id?, status, reason?, payload?}`; `agent_id` is required where calls of several agents
/// have this id. The first answer counts; its repeat answers the same. Answers 200 with the [`ToolCallState`].
/// Publishes `artifact_response` to the agent and the user. Errors: `NOT_FOUND`, `FORBIDDEN` (on
/// another device), `ALREADY_DECIDED` (also claimed by another device), `TOOL_CALL_EXPIRED`, `MESSAGE_TOO_LARGE`.
pub async fn respond(
    user: User,
    State(work): State<UnitOfWork>,
    Path(RequestId(request_id)): Path<RequestId>,
    request: Request,
) -> Result<Data<ToolCallState>> {
    let bytes = read(request, Code::MessageTooLarge).await?;
    let body = super::read_response(&bytes)?;
    let answered = super::respond(&work, Responder::of(&user), &request_id, &body).await;
    answered.map(Data)
}
