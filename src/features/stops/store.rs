use blindpipe_protocol::{
    messages::Sender,
    stops::{StopTurn, TurnStop},
};
use chrono::{DateTime, Utc};

use super::Stopper;
use crate::{
    auth::user::lock_live_session,
    error::{Code, Result},
    events::Event,
    features::tool_calls,
    ids::{AgentId, ConversationId, EventId, Principal, PrincipalKind},
    work::Tx,
};

/// The agents that a stop reaches, and its event.
pub struct StoppedAgents {
    pub agents: Vec<AgentId>,
    pub event: EventId,
}

/// Emits the event of a stop, and denies the pending tool calls of its agents. Errors:
/// `NOT_FOUND`.
pub async fn stop(
    tx: &Tx,
    by: Stopper,
    conversation: ConversationId,
    asked: StopTurn,
) -> Result<StoppedAgents> {
    lock_live_session(tx, by.user, by.session).await?;
    // A change of members waits for this lock, and a send does not.
    let held = tx
        .query_opt(
            "-- stops.hold
            select app_now() as at from conversation c where c.conversation_id = $1
                and exists (select from member m where m.conversation_id = $1 and m.principal_id = $2)
            for key share of c",
            &[&conversation, &by.user],
        )
        .await?
        .ok_or(Code::NotFound)?;
    let at: DateTime<Utc> = held.get("at");
    let agents = agents(tx, by, conversation, asked.agent_id).await?;
    let event = EventId::generate(tx.random());
    let stop = TurnStop {
        by: Sender::of(Principal::User(by.user), None),
        conversation_id: conversation,
        in_reply_to: asked.in_reply_to,
        at: at.into(),
    };
    let recipients = agents.iter().copied().map(Principal::Agent).collect();
    tx.emit_as(event, Event::TurnStop(stop), Some(conversation), recipients)?;
    tool_calls::deny_of_stopped(tx, conversation, &agents).await?;
    Ok(StoppedAgents { agents, event })
}

/// The named agent of the conversation, or all of them. Also those that only receive what names
/// them. Errors: `NOT_FOUND`.
async fn agents(
    tx: &Tx,
    by: Stopper,
    conversation: ConversationId,
    named: Option<AgentId>,
) -> Result<Vec<AgentId>> {
    // A separate statement, so that it sees everything committed before the lock.
    let rows = tx
        .query(
            "-- stops.members
            select principal_id, principal_kind from active_member
            where conversation_id = $1 and (principal_id = $2 or principal_kind = 'agent')
            order by principal_id",
            &[&conversation, &by.user],
        )
        .await?;
    let is_agent = |kind: PrincipalKind| kind == PrincipalKind::Agent;
    let (agents, users): (Vec<_>, Vec<_>) = rows
        .iter()
        .partition(|row| is_agent(row.get("principal_kind")));
    if users.is_empty() {
        return Err(Code::NotFound.into());
    }
    let mut agents: Vec<AgentId> = agents.iter().map(|row| row.get("principal_id")).collect();
    if let Some(named) = named {
        agents.retain(|agent| *agent == named);
        if agents.is_empty() {
            return Err(Code::NotFound.into());
        }
    }
    Ok(agents)
}
