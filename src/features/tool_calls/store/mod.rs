//! The rows of calls: how they are made, judged, answered and ended.

mod ends;
mod judge;
mod purge;
mod requests;
mod responses;

use blindpipe_protocol::{
    raw::RawJson,
    tool_calls::{ToolCallOutcome, ToolCallState, outcome_code},
};
use tokio_postgres::Row;
use uuid::Uuid;

pub use self::{
    ends::{
        deny_of_grants, deny_of_stopped, expire, forget_calls, forget_consents, revoke_consent,
        revoke_consent_of_device,
    },
    purge::purge,
    requests::request,
    responses::{claim, respond},
};
use crate::{
    error::Result,
    events::Event,
    ids::{AgentId, Principal, UserId},
    work::Tx,
};

/// The reason of a call whose grant was revoked before a device answered.
const GRANT_REVOKED: &str = "grant_revoked";
/// The reason of a call whose agent a user has stopped before a device answered.
const USER_STOPPED: &str = "user_stopped";

/// A call as it is stored.
struct StoredCall {
    id: Uuid,
    agent: AgentId,
    user: UserId,
    device: Option<String>,
    scope: String,
    answered_by: Option<String>,
    state: ToolCallState,
}

impl StoredCall {
    fn of(row: &Row) -> Self {
        let status = row.get("status");
        let result: Option<String> = row.get("result");
        let (conversation_id, user) = (row.get("conversation_id"), row.get("user_id"));
        StoredCall {
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
    fn emit_to(&self, tx: &Tx, to: Vec<Principal>) -> Result<()> {
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

    fn both(&self) -> Vec<Principal> {
        vec![self.agent.into(), self.user.into()]
    }
}
