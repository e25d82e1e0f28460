//! `POST /agents/{agent_id}/ack`.

use axum::extract::State as Handle;
use blindpipe_protocol::inbox::{Ack, Acked};

use super::super::{Agents, store};
use crate::{
    auth::agent::{Agent, lock_live_token},
    cursor::Cursor,
    error::{Error, Result},
    http::{Data, JsonOrNothing},
    ids::Principal,
    inbox::{self, Bounds, Inbox, Reader},
};

/// `POST /agents/{agent_id}/ack`: the agent is reachable, and has all events up to a place.
///
/// Caller: agent. Body `{cursor?, up_to_seq?}` or none; the cursor counts if both are given, and
/// without either nothing is acked. An unreachable agent becomes `active`. Answers 200 with
/// [`Acked`]. Publishes `agent.state_changed` to the owner if it does. Errors: `VALIDATION_ERROR` for
/// a place that was not given out yet, `CURSOR_EXPIRED` for a cursor of another epoch.
pub async fn ack(
    agent: Agent,
    Handle(agents): Handle<Agents>,
    Handle(inbox): Handle<Inbox>,
    JsonOrNothing(body): JsonOrNothing<Ack>,
) -> Result<Data<Acked>> {
    let reader = Reader::new(Principal::Agent(agent.id), "");
    let mut bounds = inbox.bounds(&reader).await?;
    if let Some(up_to) = place(&body, &bounds)? {
        let acked = agents.work.run("agents.ack", async |tx| {
            lock_live_token(tx, agent.id, agent.token).await?;
            inbox::ack(tx, &reader, up_to).await
        });
        acked.await?;
        inbox::log_acked(agents.work.db(), &[agent.id]).await?;
        bounds.acked = bounds.acked.max(up_to.seq);
    }
    agents.reachability.acked(&[agent.id]).await?;
    let state = store::state(agents.work.db(), agent.id).await?;
    Ok(Data(Acked {
        state,
        resumed_from_seq: bounds.acked,
        queued: bounds.head - bounds.acked,
    }))
}

/// The place that the body names in the inbox.
fn place(body: &Ack, bounds: &Bounds) -> Result<Option<Cursor>> {
    let (path, place) = match (body.cursor, body.up_to_seq) {
        (Some(cursor), _) if cursor.epoch != bounds.epoch => return Err(bounds.expired()),
        (Some(cursor), _) => ("cursor", cursor),
        (None, Some(seq)) => ("up_to_seq", bounds.cursor(seq)),
        (None, None) => return Ok(None),
    };
    if (0..=bounds.head).contains(&place.seq) {
        return Ok(Some(place));
    }
    let message = "must be a number that was given out";
    Err(Error::field(path, "range", message))
}
