//! Whom a command speaks to.

use blindpipe_client::{
    Client,
    client::Conversation,
    protocol::ids::{AgentId, UserId},
};

use crate::{
    context::Context,
    credentials,
    failure::{Failure, Result},
};

/// An agent by its id, or by its name among the credentials here and the agents of this person.
pub async fn agent(client: &Client, at: &Context, named: &str) -> Result<AgentId> {
    if let Ok(id) = named.parse() {
        return Ok(id);
    }
    let here = credentials::all(at)?;
    let mut found: Vec<_> = here
        .iter()
        .filter(|it| it.name == named)
        .map(|it| it.agent_id)
        .collect();
    let mut cursor = None;
    while found.is_empty() {
        let (page, next) = client.agents(cursor).await?;
        found.extend(
            page.iter()
                .filter(|it| it.display_name == named)
                .map(|it| it.agent_id),
        );
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    match found[..] {
        [only] => Ok(only),
        [] => Err(Failure::usage(format!("there is no agent {named:?}")).remedy("`bp agent ls`")),
        _ => Err(Failure::usage(format!("several agents are called {named:?}")).remedy("its id")),
    }
}

/// A conversation by its id, with `user:ID`, or with an agent by name or id.
pub async fn conversation(client: &Client, at: &Context, to: &str) -> Result<Conversation> {
    if let Some(user) = to.strip_prefix("user:") {
        let user: UserId = user
            .parse()
            .map_err(|_| Failure::usage(format!("{user:?} is no user's id")))?;
        return Ok(client.open_direct(user).await?);
    }
    if let Ok(id) = to.parse() {
        return Ok(client.conversation(id));
    }
    let agent = agent(client, at, to).await?;
    Ok(client.open_agent(agent).await?)
}
