//! A device answers a call.

use blindpipe_protocol::{
    agents::Sensitivity,
    conversations::Encryption,
    raw::RawJson,
    tool_calls::{AnswerStatus, RespondArtifact, ToolCallState, ToolCallStatus},
};

use super::{
    super::{Responder, rules},
    GRANT_REVOKED, Stored,
};
use crate::{
    auth::user::lock_live_session,
    error::{Code, Error, Result},
    work::Tx,
};

/// The reason of a denial for which the user gave none.
const USER_DENIED: &str = "user_denied";

/// Answers a call for the device of a session. Sockets may know the device by an earlier name.
pub async fn respond(
    tx: &Tx,
    responder: Responder,
    request_id: &str,
    response: &RespondArtifact,
) -> Result<ToolCallState> {
    let Responder { user, session } = responder;
    lock_live_session(tx, user, session).await?;
    tx.query_opt(
        "-- tool_calls.lock
        select 1 from tool_call where user_id = $1 and request_id = $2 for update",
        &[&user, &request_id],
    )
    .await?
    .ok_or(Code::NotFound)?;
    // A separate statement, so that it sees everything committed before the lock.
    let row = tx
        .query_one(
            "-- tool_calls.answerable
            select t.call_id, t.agent_id, t.request_id, t.user_id, t.conversation_id, t.scope, t.sensitivity, t.device_id, t.prompt_required, t.status,
                t.reason, t.result, t.answered_by, t.expires_at,
                c.encryption, t.expires_at <= app_now() as is_late,
                coalesce(g.state = 'approved', false) as is_granted,
                t.device_id is null or t.device_id in (d.device_id, d.renamed_from) as is_asked, d.device_id as by_device
            from tool_call t join conversation c using (conversation_id)
            join session s on s.session_id = $3 join device d on d.user_id = s.user_id and d.device_id = s.device_id
            left join agent_grant_shown g using (grant_id)
            where t.user_id = $1 and t.request_id = $2",
            &[&user, &request_id, &session],
        )
        .await?;
    let (call, device): (_, String) = (Stored::of(&row), row.get("by_device"));
    if row.get::<_, Option<bool>>("is_asked") != Some(true) {
        return Err(Code::Forbidden.into());
    }
    if call.state.status != ToolCallStatus::Pending {
        return repeated(call, &device, response.status);
    }
    if row.get("is_late") {
        return Err(expired(timeout_reason(call.state.prompt_required)));
    }
    if !row.get::<_, bool>("is_granted") {
        return Err(expired(GRANT_REVOKED));
    }
    let encryption: Encryption = row.get("encryption");
    rules::must_fit(encryption, response.payload.as_ref())?;
    let ended = answer(tx, &call, &device, response).await?;
    if ended.state.sensitivity == Sensitivity::Medium && response.status == AnswerStatus::Executed {
        extend_silence(tx, &ended, &device).await?;
    }
    ended.tell(tx, ended.both())?;
    Ok(ended.state)
}

/// A second answer: the same one of the same device repeats the first, whose 200 may have been
/// lost.
fn repeated(call: Stored, device: &str, status: AnswerStatus) -> Result<ToolCallState> {
    if call.answered_by.is_none() {
        let reason = call.state.reason.unwrap_or_default();
        return Err(expired(&reason));
    }
    let same = call.state.status == ToolCallStatus::from(status);
    if same && call.answered_by.as_deref() == Some(device) {
        return Ok(call.state);
    }
    Err(Error::from(Code::AlreadyDecided).with("status", call.state.status.as_str()))
}

/// The reason that the sweep gives to a call that nobody answered in time.
const fn timeout_reason(prompt_required: bool) -> &'static str {
    match prompt_required {
        true => "user_timeout",
        false => "device_timeout",
    }
}

fn expired(reason: &str) -> Error {
    Error::from(Code::ToolCallExpired).with("reason", reason)
}

async fn answer(
    tx: &Tx,
    call: &Stored,
    device: &str,
    response: &RespondArtifact,
) -> Result<Stored> {
    let denied = (response.status == AnswerStatus::Denied).then_some(USER_DENIED);
    let reason = response.reason.as_ref().map(|text| text.0.as_str());
    let result = response.payload.as_ref().map(RawJson::as_str);
    let row = tx
        .query_one(
            "-- tool_calls.answer
            update tool_call set status = $2, reason = $3, result = $4, answered_by = $5, ended_at = app_now()
            where call_id = $1
            returning call_id, agent_id, request_id, user_id, conversation_id, scope, sensitivity, device_id, prompt_required, status,
                reason, result, answered_by, expires_at",
            &[
                &call.id,
                &ToolCallStatus::from(response.status),
                &reason.or(denied),
                &result,
                &device,
            ],
        )
        .await?;
    Ok(Stored::of(&row))
}

/// The next calls of this scope run without a prompt on this device, for a day.
async fn extend_silence(tx: &Tx, call: &Stored, device: &str) -> Result<()> {
    tx.execute(
        "-- tool_calls.extend_silence
        insert into tool_consent (user_id, device_id, agent_id, conversation_id, scope, used_at)
        values ($1, $2, $3, $4, $5, app_now())
        on conflict (user_id, device_id, agent_id, conversation_id, scope) do update set used_at = excluded.used_at",
        &[
            &call.user,
            &device,
            &call.agent,
            &call.state.conversation_id,
            &call.scope,
        ],
    )
    .await?;
    Ok(())
}
