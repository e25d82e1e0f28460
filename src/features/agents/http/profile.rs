//! `PATCH /agents/{agent_id}` by the owner.

use axum::extract::{FromRequest, Request};
use blindpipe_protocol::agents::{Agent, ChangeAgent};

use super::{
    super::{Agents, store},
    full,
};
use crate::{
    auth::owned::OwnedAgent,
    error::{Code, Error, Result},
    http::{Data, Json},
};

/// Changes the name and the purpose of an agent, which its owner may do.
pub async fn change(agents: &Agents, agent: &OwnedAgent, request: Request) -> Result<Data<Agent>> {
    let Json::<ChangeAgent>(body) = Json::from_request(request, &()).await?;
    let ChangeAgent {
        display_name,
        description,
    } = body;
    if display_name.is_none() && description.is_none() {
        let fault = "nothing to change: display_name or description";
        return Err(Error::field("display_name", "required", fault));
    }
    let (name, purpose) = (
        display_name.as_ref().map(|name| name.0.as_str()),
        description.as_ref().map(|text| text.0.as_str()),
    );
    let changed = agents.work.run("agents.change_profile", async |tx| {
        store::lock_owned(tx, agent).await?;
        store::put_profile(tx, agent.id, name, purpose).await
    });
    changed.await?;
    let shown = store::find_visible(agents.work.db(), agent.id, agent.owner.into()).await?;
    let (row, _) = shown.ok_or(Code::AgentNotRegistered)?;
    let connections = agents.slots.connections(&[agent.id.into()]).await.concat();
    Ok(Data(full(row, connections)))
}
