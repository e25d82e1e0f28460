//! `POST /agents/{agent_id}/ack`.

use axum::extract::State as Handle;
use blindpipe_protocol::inbox::{Ack, Acked};

use super::super::{Agents, store};
use crate::{
    auth::agent::{Agent, lock_live_token},
    error::{Error, Result},
    http::{Data, JsonOrNothing},
    ids::Principal,
    inbox::{self, Inbox, Reader},
};

/// `POST /agents/{agent_id}/ack`: the agent is reachable, and has all events up to a number.
///
/// Caller: agent. Body `{up_to_seq?}` or none; without a number nothing is acked. An unreachable
/// agent becomes `active`. Answers 200 with [`Acked`]. Publishes `agent.state_changed` to the owner
/// if it does. Errors: `VALIDATION_ERROR` for a number that was not assigned yet.
pub async fn ack(
    agent: Agent,
    Handle(agents): Handle<Agents>,
    Handle(inbox): Handle<Inbox>,
    JsonOrNothing(body): JsonOrNothing<Ack>,
) -> Result<Data<Acked>> {
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
    let state = store::state(agents.work.db(), agent.id).await?;
    Ok(Data(Acked {
        state,
        resumed_from_seq: bounds.acked,
        queued: bounds.head - bounds.acked,
    }))
}
