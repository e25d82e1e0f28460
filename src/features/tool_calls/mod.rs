//! Tool calls: an agent asks the devices of a user to run a tool, under a grant of the user's.
//!
//! Promises: a call has one outcome, whatever devices answer at once. Of several devices one may
//! claim a call. A call of high sensitivity is
//! denied 30 seconds after it was accepted, whichever nodes die meanwhile. A call whose grant is
//! revoked is denied unless it was answered before. An agent that repeats a request gets its state.
//!
//! A call is a row. Every node looks for overdue rows each second and denies those that no other
//! node holds, so no lease has to run out when a node dies.
//!
//! `store/requests.rs` makes calls or finds them, `store/judge.rs` decides under which grant a call
//! may run, `store/responses.rs` takes a device's claim or answer, and `store/ends.rs` ends calls by
//! deadline, revocation or age. `rules.rs` judges without rows.
//!
//! Why: ADR 31.

pub(crate) mod http;
mod rules;
mod store;

use std::time::Duration;

use blindpipe_protocol::tool_calls::{RequestArtifact, RespondArtifact, ToolCallState};

pub(crate) use self::{
    rules::{read_request, read_response},
    store::purge,
};
use crate::{
    auth::{agent::Agent, user::User},
    db::batches::paced,
    error::Result,
    ids::{AgentId, ConversationId, GrantId, SessionId, UserId},
    limits::quotas::TOOL_CALL_RETENTION_DAYS,
    work::{Tx, UnitOfWork},
};

/// Interval at which a node looks for overdue calls.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a call after a request.
pub(crate) struct RequestedCall {
    pub state: ToolCallState,
    /// Whether the agent had made this request before.
    pub replayed: bool,
}

/// Makes a call for an agent, or finds it.
pub(crate) async fn request(
    work: &UnitOfWork,
    agent: Agent,
    request: &RequestArtifact,
) -> Result<RequestedCall> {
    work.run("tool_calls.request", async |tx| {
        store::request(tx, agent, request).await
    })
    .await
}

/// A user on the device of a session.
#[derive(Clone, Copy)]
pub(crate) struct Responder {
    pub user: UserId,
    pub session: SessionId,
}

impl Responder {
    const fn of(user: &User) -> Self {
        Responder {
            user: user.id,
            session: user.session,
        }
    }
}

/// Keeps a call for a device, which alone may answer it from now on.
async fn claim(
    work: &UnitOfWork,
    responder: Responder,
    request_id: &str,
    agent: Option<AgentId>,
) -> Result<ToolCallState> {
    work.run("tool_calls.claim", async |tx| {
        store::claim(tx, responder, request_id, agent).await
    })
    .await
}

/// Answers a call for a device.
pub(crate) async fn respond(
    work: &UnitOfWork,
    responder: Responder,
    request_id: &str,
    response: &RespondArtifact,
) -> Result<ToolCallState> {
    work.run("tool_calls.respond", async |tx| {
        store::respond(tx, responder, request_id, response).await
    })
    .await
}

/// Denies overdue calls.
pub(crate) async fn expire(work: &UnitOfWork) -> Result<()> {
    while work.run("tool_calls.expire", store::expire).await? {}
    Ok(())
}

/// Denies the pending calls of revoked grants. The caller has locked the grants.
pub(crate) async fn deny_of_grants(tx: &Tx, grants: &[GrantId]) -> Result<()> {
    store::deny_of_grants(tx, grants).await
}

/// Denies the pending calls of agents that a user stops in a conversation.
pub(crate) async fn deny_of_stopped(
    tx: &Tx,
    conversation: ConversationId,
    agents: &[AgentId],
) -> Result<()> {
    store::deny_of_stopped(tx, conversation, agents).await
}

/// Forgets to which calls of an agent a user has agreed in a conversation. The next one prompts.
pub(crate) async fn revoke_consent(
    tx: &Tx,
    user: UserId,
    agent: AgentId,
    conversation: ConversationId,
) -> Result<()> {
    store::revoke_consent(tx, user, agent, conversation).await
}

/// Forgets to which calls a user has agreed on a device.
pub(crate) async fn revoke_consent_of_device(
    work: &UnitOfWork,
    user: UserId,
    device: &str,
) -> Result<()> {
    work.run("tool_calls.end_silence_of_device", async |tx| {
        store::revoke_consent_of_device(tx, user, device).await
    })
    .await
}

/// Deletes old calls and old agreements, batch by batch.
pub(crate) async fn forget(work: &UnitOfWork) -> Result<()> {
    while paced(store::forget_calls(work.db(), TOOL_CALL_RETENTION_DAYS)).await? {}
    while paced(store::forget_consents(work.db())).await? {}
    Ok(())
}
