//! Agents: who they are, their tokens, their state.
//!
//! Promises: a user never has more agents than allowed, however many requests race; a token is shown once.

pub mod http;
mod store;

use crate::{
    db::Tx,
    error::Result,
    ids::{AgentId, UserId},
};

/// An agent as a conversation shows it.
pub struct Card {
    /// The agent.
    pub id: AgentId,
    /// Its name.
    pub display_name: String,
    /// Whose it is.
    pub owner: UserId,
}

/// The agent, if it exists.
pub async fn find(tx: &Tx, id: AgentId) -> Result<Option<Card>> {
    store::find(tx, id).await
}
