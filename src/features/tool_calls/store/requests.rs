//! A call is made, or found.

use blindpipe_protocol::{
    agents::Sensitivity,
    tool_calls::{RequestArtifact, ToolCall, ToolCallState, ToolCallStatus},
};
use chrono::{DateTime, Utc};

use super::{
    super::{RequestedCall, rules},
    StoredCall,
    judge::{Judgment, judge},
};
use crate::{
    access_log::{self, AccessKind, Read},
    auth::agent::{Agent, lock_live_token},
    error::{Code, Result},
    events::Event,
    features::conversations::{self, AskedUser},
    ids::{AgentId, UserId},
    limits::quotas::{CONFIRMATION_TIMEOUT, TOOL_CALL_TIMEOUT},
    work::Tx,
};

/// The reason of a call without a grant.
const SCOPE_NOT_GRANTED: &str = "scope_not_granted";

/// Makes a call, or finds it.
pub async fn request(tx: &Tx, agent: Agent, request: &RequestArtifact) -> Result<RequestedCall> {
    lock_live_token(tx, agent.id, agent.token).await?;
    let (conversation, named) = (request.conversation_id, request.user_id);
    if let Some(state) = find(tx, agent.id, request, named).await? {
        return replayed(tx, agent.id, state).await;
    }
    let asked = conversations::asked_user(tx, conversation, agent.id, named).await?;
    rules::must_fit(asked.encryption, Some(&request.payload))?;
    let device = match &request.device_id {
        Some(device) => Some(device_of(tx, asked.user, &device.0).await?),
        None => None,
    };
    let new = judge(tx, agent.id, &asked, request, device).await?;
    let Some(call) = insert(tx, agent.id, &asked, request, &new).await? else {
        // The agent makes this request twice at once, or has made it in another conversation.
        let found = find(tx, agent.id, request, Some(asked.user)).await?;
        let state = found.ok_or(Code::IdempotencyConflict)?;
        return replayed(tx, agent.id, state).await;
    };
    emit_requested(tx, &call, request, new)?;
    Ok(RequestedCall {
        state: call.stored.state,
        replayed: false,
    })
}

/// The present state of a call. Its result is the user's data, which ends with the relation.
async fn replayed(tx: &Tx, agent: AgentId, state: ToolCallState) -> Result<RequestedCall> {
    if state.payload.is_some() {
        let read = Read::of(state.conversation_id);
        access_log::record(tx, agent, AccessKind::ToolCall, &[read]).await?;
    }
    Ok(RequestedCall {
        state,
        replayed: true,
    })
}

/// The call that has the id of a request. A request that names nobody means the call of its
/// conversation; none if several users are asked there.
async fn find(
    tx: &Tx,
    agent: AgentId,
    request: &RequestArtifact,
    user: Option<UserId>,
) -> Result<Option<ToolCallState>> {
    let (request_id, conversation) = (&request.request_id.0, request.conversation_id);
    let rows = tx
        .query(
            "-- tool_calls.find
            select t.call_id, t.agent_id, t.request_id, t.user_id, t.conversation_id, t.scope, t.sensitivity, t.device_id,
                t.prompt_required, t.status, t.reason, t.answered_by, t.expires_at,
                case when exists (select from relation r where r.user_id = t.user_id and r.agent_id = t.agent_id
                    and r.state = 'active') then t.result end as result
            from tool_call t where t.agent_id = $1 and t.request_id = $2
                and (t.user_id = $3 or $3::uuid is null and t.conversation_id = $4)
            limit 2",
            &[&agent, request_id, &user, &conversation],
        )
        .await?;
    Ok(match rows.as_slice() {
        [row] => Some(StoredCall::of(row).state),
        _ => None,
    })
}

/// The current name of a device that can answer. Errors: `NOT_FOUND`.
async fn device_of(tx: &Tx, user: UserId, device: &str) -> Result<String> {
    Ok(tx
        .query_opt(
            "-- tool_calls.device
            select device_id from device
            where user_id = $1 and (device_id = $2 or renamed_from = $2) and revoked_at is null
            order by device_id = $2 desc limit 1",
            &[&user, &device],
        )
        .await?
        .ok_or(Code::NotFound)?
        .get("device_id"))
}

/// A call that has just been stored.
struct New {
    stored: StoredCall,
    created_at: DateTime<Utc>,
}

/// Stores a call; none if its id is taken.
async fn insert(
    tx: &Tx,
    agent: AgentId,
    asked: &AskedUser,
    request: &RequestArtifact,
    new: &Judgment,
) -> Result<Option<New>> {
    let timeout = match new.sensitivity {
        Sensitivity::High => CONFIRMATION_TIMEOUT,
        _ => TOOL_CALL_TIMEOUT,
    };
    let (status, reason) = match new.grant {
        Some(_) => (ToolCallStatus::Pending, None),
        None => (ToolCallStatus::Denied, Some(SCOPE_NOT_GRANTED)),
    };
    let row = tx
        .query_opt(
            "-- tool_calls.insert
            insert into tool_call (call_id, agent_id, request_id, user_id, conversation_id, grant_id, tool, scope,
                sensitivity, device_id, prompt_required, status, reason, created_at, expires_at, ended_at)
            select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, at, at + make_interval(secs => $14),
                case when $12 <> 'pending' then at end
            from app_now() as at
            on conflict (agent_id, request_id, user_id) do nothing
            returning call_id, agent_id, request_id, user_id, conversation_id, scope, sensitivity, device_id, prompt_required, status,
                reason, result, answered_by, expires_at, created_at",
            &[
                &tx.random().ulid(),
                &agent,
                &request.request_id.0,
                &asked.user,
                &request.conversation_id,
                &new.grant,
                &request.tool.0,
                &request.scope.0,
                &new.sensitivity,
                &new.device,
                &new.prompt_required,
                &status,
                &reason,
                &timeout.as_secs_f64(),
            ],
        )
        .await?;
    Ok(row.map(|row| New {
        stored: StoredCall::of(&row),
        created_at: row.get("created_at"),
    }))
}

/// Publishes a new call to the user, or its denial to the agent. Nobody asks the user then.
fn emit_requested(tx: &Tx, new: &New, request: &RequestArtifact, judged: Judgment) -> Result<()> {
    let New { stored, created_at } = new;
    if stored.state.status == ToolCallStatus::Denied {
        return stored.emit_to(tx, vec![stored.agent.into()]);
    }
    let call = ToolCall {
        request_id: stored.state.request_id.clone(),
        agent_id: stored.agent,
        user_id: stored.user,
        conversation_id: request.conversation_id,
        tool: request.tool.0.clone(),
        scope: stored.scope.clone(),
        sensitivity: stored.state.sensitivity,
        device_id: stored.device.clone(),
        prompt_required: stored.state.prompt_required,
        silent_devices: judged.consented_devices,
        created_at: (*created_at).into(),
        expires_at: stored.state.expires_at,
        payload: request.payload.clone(),
    };
    let conversation = Some(request.conversation_id);
    let event = Event::ArtifactRequest(Box::new(call));
    tx.emit(event, conversation, vec![stored.user.into()])
}
