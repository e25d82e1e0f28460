//! A device claims a call, or answers it.

use blindpipe_protocol::{
    agents::Sensitivity,
    conversations::Encryption,
    raw::RawJson,
    tool_calls::{AnswerStatus, RespondArtifact, ToolCallState, ToolCallStatus},
};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    super::{Responder, rules},
    GRANT_REVOKED, StoredCall,
};
use crate::{
    auth::user::lock_live_session,
    error::{Code, Error, Result},
    ids::{AgentId, UserId},
    limits::quotas::{CONSENT_WINDOW, MAX_CONSENT},
    planted::PlantedBug,
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
    let held = hold(tx, responder, request_id, response.agent_id).await?;
    let is_answered = held.call.state.status != ToolCallStatus::Pending;
    if is_answered && !PlantedBug::AnsweredTwice.is_planted() {
        return repeated(held.call, &held.device, response.status);
    }
    held.must_be_open()?;
    rules::must_fit(held.encryption, response.payload.as_ref())?;
    let ended = answer(tx, &held, response).await?;
    if ended.state.sensitivity == Sensitivity::Medium && response.status == AnswerStatus::Executed {
        extend_consent(tx, &ended, &held).await?;
    }
    ended.emit_to(tx, ended.both())?;
    Ok(ended.state)
}

/// Keeps a call for the device of a session, which alone may answer it from now on.
pub async fn claim(
    tx: &Tx,
    responder: Responder,
    request_id: &str,
    agent: Option<AgentId>,
) -> Result<ToolCallState> {
    let held = hold(tx, responder, request_id, agent).await?;
    if held.call.state.status != ToolCallStatus::Pending {
        return Err(ended(held.call));
    }
    held.must_be_open()?;
    tx.execute(
        "-- tool_calls.claim
        update tool_call set claimed_by = $2 where call_id = $1",
        &[&held.call.id, &held.device],
    )
    .await?;
    Ok(held.call.state)
}

/// A call that is locked to the end of the transaction, and the device that was asked.
struct HeldCall {
    call: StoredCall,
    device: String,
    created_at: DateTime<Utc>,
    encryption: Encryption,
    is_late: bool,
    is_granted: bool,
    /// No other device has claimed it.
    is_free: bool,
}

impl HeldCall {
    /// Errors: `TOOL_CALL_EXPIRED`, `ALREADY_DECIDED` if another device has claimed it.
    fn must_be_open(&self) -> Result<()> {
        if self.is_late && !PlantedBug::LateAnswer.is_planted() {
            return Err(expired(timeout_reason(self.call.state.prompt_required)));
        }
        if !self.is_granted {
            return Err(expired(GRANT_REVOKED));
        }
        if !self.is_free {
            return Err(decided(self.call.state.status));
        }
        Ok(())
    }
}

/// Locks a call of the user. Errors: `NOT_FOUND`, `FORBIDDEN` on a device that was not asked.
async fn hold(
    tx: &Tx,
    responder: Responder,
    request_id: &str,
    agent: Option<AgentId>,
) -> Result<HeldCall> {
    let Responder { user, session } = responder;
    lock_live_session(tx, user, session).await?;
    let id = lock(tx, user, request_id, agent).await?;
    // A separate statement, so that it sees everything committed before the lock.
    let row = tx
        .query_one(
            "-- tool_calls.held
            select t.call_id, t.agent_id, t.request_id, t.user_id, t.conversation_id, t.scope, t.sensitivity, t.device_id, t.prompt_required, t.status,
                t.reason, t.result, t.answered_by, t.expires_at, t.created_at,
                c.encryption, t.expires_at <= app_now() as is_late,
                coalesce(g.state = 'approved', false) as is_granted,
                t.claimed_by is null or coalesce(t.claimed_by in (d.device_id, d.renamed_from), false) as is_free,
                t.device_id is null or t.device_id in (d.device_id, d.renamed_from) as is_asked, d.device_id as by_device
            from tool_call t join conversation c using (conversation_id)
            join session s on s.session_id = $2 join device d on d.user_id = s.user_id and d.device_id = s.device_id
            left join agent_grant_shown g using (grant_id)
            where t.call_id = $1",
            &[&id, &session],
        )
        .await?;
    if row.get::<_, Option<bool>>("is_asked") != Some(true) {
        return Err(Code::Forbidden.into());
    }
    Ok(HeldCall {
        call: StoredCall::of(&row),
        device: row.get("by_device"),
        created_at: row.get("created_at"),
        encryption: row.get("encryption"),
        is_late: row.get("is_late"),
        is_granted: row.get("is_granted"),
        is_free: row.get("is_free"),
    })
}

/// Locks the call of this name. Errors: `NOT_FOUND`; 400 if several agents gave the name and none
/// of them is named.
async fn lock(tx: &Tx, user: UserId, request_id: &str, agent: Option<AgentId>) -> Result<Uuid> {
    let rows = tx
        .query(
            "-- tool_calls.lock
            select call_id from tool_call
            where user_id = $1 and request_id = $2 and ($3::uuid is null or agent_id = $3)
            order by call_id limit 2 for update",
            &[&user, &request_id, &agent],
        )
        .await?;
    match rows.as_slice() {
        [] => Err(Code::NotFound.into()),
        [row] => Ok(row.get("call_id")),
        _ => Err(Error::field(
            "agent_id",
            "ambiguous",
            "calls of several agents have this id",
        )),
    }
}

/// A second answer: the same one of the same device repeats the first, whose 200 may have been
/// lost.
fn repeated(call: StoredCall, device: &str, status: AnswerStatus) -> Result<ToolCallState> {
    let same = call.state.status == ToolCallStatus::from(status);
    if same && call.answered_by.as_deref() == Some(device) {
        return Ok(call.state);
    }
    Err(ended(call))
}

/// A call that is over: a device has answered it, or its time or its grant has ended.
fn ended(call: StoredCall) -> Error {
    match call.answered_by {
        Some(_) => decided(call.state.status),
        None => expired(&call.state.reason.unwrap_or_default()),
    }
}

fn decided(status: ToolCallStatus) -> Error {
    Error::from(Code::AlreadyDecided).with("status", status.as_str())
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

async fn answer(tx: &Tx, held: &HeldCall, response: &RespondArtifact) -> Result<StoredCall> {
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
                &held.call.id,
                &ToolCallStatus::from(response.status),
                &reason.or(denied),
                &result,
                &held.device,
            ],
        )
        .await?;
    Ok(StoredCall::of(&row))
}

/// The next calls of this scope run without a prompt on this device, for a day. A call that needed
/// a prompt itself also begins the longest silence anew.
async fn extend_consent(tx: &Tx, call: &StoredCall, held: &HeldCall) -> Result<()> {
    tx.execute(
        "-- tool_calls.extend_silence
        insert into tool_consent as c (user_id, device_id, agent_id, conversation_id, scope, used_at, prompted_at)
        values ($1, $2, $3, $4, $5, app_now(), app_now())
        on conflict (user_id, device_id, agent_id, conversation_id, scope) do update
        set used_at = excluded.used_at,
            prompted_at = case when c.used_at > $6::timestamptz - make_interval(secs => $7)
                and c.prompted_at > $6 - make_interval(secs => $8) then c.prompted_at else excluded.prompted_at end",
        &[
            &call.user,
            &held.device,
            &call.agent,
            &call.state.conversation_id,
            &call.scope,
            &held.created_at,
            &CONSENT_WINDOW.as_secs_f64(),
            &MAX_CONSENT.as_secs_f64(),
        ],
    )
    .await?;
    Ok(())
}
