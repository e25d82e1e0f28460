//! `POST /agents/{agent_id}/ack`.

use axum::extract::State as Handle;
use serde::{Deserialize, Serialize};

use super::super::{Agents, store};
use crate::{
    auth::agent::{Agent, lock_live_token},
    error::{Error, Result},
    http::{Data, JsonOrNothing},
    ids::Principal,
    inbox::{self, Inbox, Reader},
    limits::Limiter,
};

#[derive(Default, Deserialize)]
pub struct Ack {
    up_to_seq: Option<i64>,
}

/// Where an agent stands after an ack.
#[derive(Serialize)]
pub struct Acked {
    state: &'static str,
    /// Everything up to here is acknowledged; what is delivered next comes after it.
    resumed_from_seq: i64,
    /// Events that wait.
    queued: i64,
}

/// `POST /agents/{agent_id}/ack`: the agent is there, and has everything up to a number.
///
/// Caller: agent. Limit: the agent's tier. Body `{up_to_seq?}` or none; without a number nothing is acked. An unreachable
/// agent is `active` again. Answers 200 with [`Acked`]. Tells the owner `agent.state_changed` if it has.
/// Errors: `VALIDATION_ERROR` for a number that was not given out yet.
pub async fn ack(
    agent: Agent,
    limiter: Limiter,
    Handle(agents): Handle<Agents>,
    Handle(inbox): Handle<Inbox>,
    JsonOrNothing(body): JsonOrNothing<Ack>,
) -> Result<Data<Acked>> {
    limiter.check_agent_route(agent.id).await?;
    let reader = Reader::new(Principal::Agent(agent.id), "");
    let mut bounds = inbox.bounds(&reader).await?;
    if let Some(seq) = body.up_to_seq {
        if !(0..=bounds.head).contains(&seq) {
            return Err(Error::field(
                "up_to_seq",
                "range",
                "must be a number that was given out",
            ));
        }
        let acked = agents.work.run("agents.ack", async |tx| {
            lock_live_token(tx, agent.id, agent.token).await?;
            inbox::ack(tx, &reader, seq).await
        });
        acked.await?;
        bounds.acked = bounds.acked.max(seq);
    }
    agents.reachability.acked(&[agent.id]).await?;
    let state = store::state(&agents.db, agent.id).await?;
    Ok(Data(Acked {
        state: state.name(),
        resumed_from_seq: bounds.acked,
        queued: bounds.head - bounds.acked,
    }))
}
