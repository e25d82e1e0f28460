use blindpipe_protocol::{
    agents::Sensitivity,
    conversations::Encryption,
    raw::RawJson,
    tool_calls::{
        AnswerStatus, RequestArtifact, RespondArtifact, ToolCall, ToolCallOutcome, ToolCallState,
        ToolCallStatus, outcome_code,
    },
};
use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    Requested, Responder,
    rules::{self, Devices},
};
use crate::{
    auth::{
        agent::{Agent, lock_live_token},
        user::lock_live_session,
    },
    db::Db,
    error::{Code, Error, Result},
    events::Event,
    features::{
        agents,
        conversations::{self, AskedUser},
    },
    ids::{AgentId, ConversationId, GrantId, UserId},
    limits::quotas::{CONFIRMATION_TIMEOUT, SILENT_WINDOW, TOOL_CALL_TIMEOUT},
    work::Tx,
};

/// The reason of a call without a grant.
const SCOPE_NOT_GRANTED: &str = "scope_not_granted";
/// The reason of a call whose grant was revoked before a device answered.
const GRANT_REVOKED: &str = "grant_revoked";
/// The reason of a denial that the user gave none for.
const USER_DENIED: &str = "user_denied";
/// Most calls that one transaction denies.
const MAX_BATCH_CALLS: i64 = 100;

/// A call as it is stored.
struct Stored {
    id: Uuid,
    agent: AgentId,
    user: UserId,
    device: Option<String>,
    scope: String,
    answered_by: Option<String>,
    state: ToolCallState,
}

impl Stored {
    fn of(row: &Row) -> Self {
        let status = row.get("status");
        let result: Option<String> = row.get("result");
        let (conversation_id, user) = (row.get("conversation_id"), row.get("user_id"));
        Stored {
            id: row.get("call_id"),
            agent: row.get("agent_id"),
            user,
            device: row.get("device_id"),
            scope: row.get("scope"),
            answered_by: row.get("answered_by"),
            state: ToolCallState {
                request_id: row.get("request_id"),
                conversation_id,
                user_id: user,
                status,
                sensitivity: row.get("sensitivity"),
                prompt_required: row.get("prompt_required"),
                expires_at: row.get("expires_at"),
                reason: row.get("reason"),
                code: outcome_code(status),
                // Only JSON that was checked on arrival is stored.
                payload: result.and_then(|text| RawJson::parse(text).ok()),
            },
        }
    }

    /// Publishes the outcome.
    fn tell(&self, tx: &Tx, to: Vec<Uuid>) -> Result<()> {
        let state = &self.state;
        let outcome = ToolCallOutcome {
            request_id: state.request_id.clone(),
            conversation_id: state.conversation_id,
            agent_id: self.agent,
            user_id: self.user,
            status: state.status,
            reason: state.reason.clone(),
            code: state.code.clone(),
            device_id: self.answered_by.clone(),
            payload: state.payload.clone(),
        };
        let conversation = Some(state.conversation_id);
        tx.emit(Event::ArtifactResponse(Box::new(outcome)), conversation, to)
    }

    fn both(&self) -> Vec<Uuid> {
        vec![self.agent.0, self.user.0]
    }
}

/// Makes a call, or finds it.
pub async fn request(tx: &Tx, agent: Agent, request: &RequestArtifact) -> Result<Requested> {
    lock_live_token(tx, agent.id, agent.token).await?;
    if let Some(state) = find(tx, agent.id, &request.request_id.0).await? {
        return Ok(replayed(state));
    }
    let (conversation, named) = (request.conversation_id, request.user_id);
    let asked = conversations::asked_user(tx, conversation, agent.id, named).await?;
    rules::must_fit(asked.encryption, Some(&request.payload))?;
    let device = match &request.device_id {
        Some(device) => Some(device_of(tx, asked.user, &device.0).await?),
        None => None,
    };
    let new = judge(tx, agent.id, &asked, request, device).await?;
    let Some(call) = insert(tx, agent.id, &asked, request, &new).await? else {
        // The agent makes this request twice at once, or another agent of the user has this id.
        let found = find(tx, agent.id, &request.request_id.0).await?;
        return found
            .map(replayed)
            .ok_or_else(|| Code::IdempotencyConflict.into());
    };
    tell_requested(tx, &call, request, new)?;
    Ok(Requested {
        state: call.stored.state,
        replayed: false,
    })
}

fn replayed(state: ToolCallState) -> Requested {
    Requested {
        state,
        replayed: true,
    }
}

async fn find(tx: &Tx, agent: AgentId, request_id: &str) -> Result<Option<ToolCallState>> {
    let row = tx
        .query_opt(
            "-- tool_calls.find
            select * from tool_call where agent_id = $1 and request_id = $2",
            &[&agent, &request_id],
        )
        .await?;
    Ok(row.map(|row| Stored::of(&row).state))
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

/// The decision on a request.
struct Judged {
    grant: Option<GrantId>,
    sensitivity: Sensitivity,
    device: Option<String>,
    prompt_required: bool,
    silent_devices: Vec<String>,
}

/// Decides under which grant a call may run, and whether a person must be asked. An agent cannot
/// lower a sensitivity after the user has read it: the higher of then and now counts.
async fn judge(
    tx: &Tx,
    agent: AgentId,
    asked: &AskedUser,
    request: &RequestArtifact,
    device: Option<String>,
) -> Result<Judged> {
    let scope = &request.scope.0;
    let declared = agents::declared_scopes(tx, agent).await?.remove(scope);
    let held = match declared {
        Some(declared) => hold_grant(tx, agent, asked.user, request.conversation_id, scope)
            .await?
            .map(|(grant, then)| (grant, declared.max(then))),
        None => None,
    };
    let Some((grant, sensitivity)) = held else {
        return Ok(Judged {
            grant: None,
            sensitivity: declared.unwrap_or(Sensitivity::High),
            device,
            prompt_required: false,
            silent_devices: Vec::new(),
        });
    };
    let devices = match sensitivity {
        Sensitivity::Medium => devices(tx, agent, asked.user, request, device.as_deref()).await?,
        _ => Devices::default(),
    };
    Ok(Judged {
        grant: Some(grant),
        sensitivity,
        device,
        prompt_required: rules::prompt_required(sensitivity, &devices),
        silent_devices: devices.silent,
    })
}

/// A grant that holds now, with the sensitivity that the user has read. It is not revoked before the
/// transaction ends.
async fn hold_grant(
    tx: &Tx,
    agent: AgentId,
    user: UserId,
    conversation: ConversationId,
    scope: &str,
) -> Result<Option<(GrantId, Sensitivity)>> {
    let row = tx
        .query_opt(
            "-- tool_calls.find_grant
            select grant_id, sensitivities[array_position(requested_scopes, $4)] as sensitivity from agent_grant_shown
            where agent_id = $1 and user_id = $2 and conversation_id = $3 and state = 'approved'
                and status in ('pending', 'approved') and $4 = any(scopes)
            order by expires_at desc nulls first limit 1",
            &[&agent, &user, &conversation, &scope],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let grant: GrantId = row.get("grant_id");
    let held = tx
        .query_opt(
            "-- tool_calls.hold_grant
            select 1 from agent_grant where grant_id = $1 and status = 'approved' for share",
            &[&grant],
        )
        .await?;
    Ok(held.map(|_| (grant, row.get("sensitivity"))))
}

/// The devices that can answer: those that are signed in.
async fn devices(
    tx: &Tx,
    agent: AgentId,
    user: UserId,
    request: &RequestArtifact,
    device: Option<&str>,
) -> Result<Devices> {
    let rows = tx
        .query(
            "-- tool_calls.devices
            select d.device_id, c.used_at > app_now() - make_interval(secs => $6) as is_silent
            from device d
            left join tool_consent c on c.user_id = d.user_id and c.device_id = d.device_id and c.agent_id = $2
                and c.conversation_id = $3 and c.scope = $4
            where d.user_id = $1 and d.revoked_at is null and ($5::text is null or d.device_id = $5)
                and exists (select from live_session s where s.user_id = d.user_id and s.device_id = d.device_id)
            order by d.device_id",
            &[
                &user,
                &agent,
                &request.conversation_id,
                &request.scope.0,
                &device,
                &SILENT_WINDOW.as_secs_f64(),
            ],
        )
        .await?;
    let silent = rows
        .iter()
        .filter(|row| row.get::<_, Option<bool>>("is_silent") == Some(true));
    Ok(Devices {
        all: rows.len(),
        silent: silent.map(|row| row.get("device_id")).collect(),
    })
}

/// A call that has just been stored.
struct New {
    stored: Stored,
    created_at: DateTime<Utc>,
}

/// Stores a call; none if its id is taken.
async fn insert(
    tx: &Tx,
    agent: AgentId,
    asked: &AskedUser,
    request: &RequestArtifact,
    new: &Judged,
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
            on conflict do nothing
            returning *",
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
        stored: Stored::of(&row),
        created_at: row.get("created_at"),
    }))
}

/// Publishes a new call to the user, or its denial to the agent. Nobody asks the user then.
fn tell_requested(tx: &Tx, new: &New, request: &RequestArtifact, judged: Judged) -> Result<()> {
    let New { stored, created_at } = new;
    if stored.state.status == ToolCallStatus::Denied {
        return stored.tell(tx, vec![stored.agent.0]);
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
        silent_devices: judged.silent_devices,
        created_at: (*created_at).into(),
        expires_at: stored.state.expires_at,
        payload: request.payload.clone(),
    };
    let conversation = Some(request.conversation_id);
    let event = Event::ArtifactRequest(Box::new(call));
    tx.emit(event, conversation, vec![stored.user.0])
}

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
            select t.*, c.encryption, t.expires_at <= app_now() as is_late,
                coalesce(g.status = 'approved' and r.state = 'active', false) as is_granted,
                t.device_id is null or t.device_id in (d.device_id, d.renamed_from) as is_asked, d.device_id as by_device
            from tool_call t join conversation c using (conversation_id)
            join session s on s.session_id = $3 join device d on d.user_id = s.user_id and d.device_id = s.device_id
            left join agent_grant g using (grant_id) left join relation r using (relation_id)
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
        return Err(expired("user_timeout"));
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

/// A second answer: the same one of the same device repeats the first, whose 200 may have been lost.
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
            where call_id = $1 returning *",
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

fn tell_all(tx: &Tx, rows: &[Row]) -> Result<()> {
    let mut calls = rows.iter().map(Stored::of);
    calls.try_for_each(|call| call.tell(tx, call.both()))
}

/// Denies some overdue calls. True while there may be more. A call that another transaction holds is
/// being answered, or denied by another node.
pub async fn expire(tx: &Tx) -> Result<bool> {
    let rows = tx
        .query(
            "-- tool_calls.expire
            with due as materialized (
                select call_id from tool_call where status = 'pending' and expires_at <= app_now()
                order by expires_at limit $1 for update skip locked
            )
            update tool_call t set status = 'denied', ended_at = app_now(),
                reason = case when t.prompt_required then 'user_timeout' else 'device_timeout' end
            from due where t.call_id = due.call_id returning t.*",
            &[&MAX_BATCH_CALLS],
        )
        .await?;
    tell_all(tx, &rows)?;
    Ok(i64::try_from(rows.len()) == Ok(MAX_BATCH_CALLS))
}

/// Denies the pending calls of grants that the transaction revokes.
pub async fn deny_of_grants(tx: &Tx, grants: &[GrantId]) -> Result<()> {
    let rows = tx
        .query(
            "-- tool_calls.deny_of_grants
            with held as materialized (
                select call_id from tool_call where grant_id = any($1) and status = 'pending' order by call_id for update
            )
            update tool_call t set status = 'denied', reason = $2, ended_at = app_now()
            from held where t.call_id = held.call_id and t.status = 'pending' returning t.*",
            &[&grants, &GRANT_REVOKED],
        )
        .await?;
    tell_all(tx, &rows)
}

pub async fn end_silence(
    tx: &Tx,
    user: UserId,
    agent: AgentId,
    conversation: ConversationId,
) -> Result<()> {
    tx.execute(
        "-- tool_calls.end_silence
        delete from tool_consent where user_id = $1 and agent_id = $2 and conversation_id = $3",
        &[&user, &agent, &conversation],
    )
    .await?;
    Ok(())
}

pub async fn end_silence_of_device(tx: &Tx, user: UserId, device: &str) -> Result<()> {
    tx.execute(
        "-- tool_calls.end_silence_of_device
        delete from tool_consent where user_id = $1 and device_id = $2",
        &[&user, &device],
    )
    .await?;
    Ok(())
}

pub async fn forget_calls(db: &Db, days: i32) -> Result<bool> {
    let client = db.read().await?;
    let deleted = client
        .execute(
            "-- tool_calls.forget_calls
            delete from tool_call where ctid = any(array(
                select ctid from tool_call where created_at < app_now() - make_interval(days => $1)
                order by created_at limit 1000
            ))",
            &[&days],
        )
        .await?;
    Ok(deleted > 0)
}

pub async fn forget_consents(db: &Db) -> Result<bool> {
    let client = db.read().await?;
    let deleted = client
        .execute(
            "-- tool_calls.forget_consents
            delete from tool_consent where ctid = any(array(
                select ctid from tool_consent where used_at < app_now() - interval '24 hours' order by used_at limit 5000
            ))",
            &[],
        )
        .await?;
    Ok(deleted > 0)
}
