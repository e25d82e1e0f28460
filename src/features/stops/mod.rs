//! Stops: a user tells the agents of a conversation to end what they do there.
//!
//! Promises: a stop is a durable event of each agent, in the transaction that denies the agent's
//! pending tool calls. Only a member stops, and only agents that are members. What an agent has
//! sent stays, and so does what it sends afterwards.
//!
//! The end of streams follows the commit. A node that dies in between leaves them to the agent,
//! which reads the event.

pub(crate) mod http;
mod store;

use blindpipe_protocol::stops::{StopTurn, StoppedTurns};

use crate::{
    error::Result,
    features::{
        streams::Streams,
        webhooks::{self, Waker},
    },
    ids::{ConversationId, SessionId, UserId},
    work::UnitOfWork,
};

/// The state of the handlers of this feature.
#[derive(Clone)]
pub struct Stops {
    pub work: UnitOfWork,
    pub streams: Streams,
    pub waker: Waker,
}

/// A user with the session of the request.
#[derive(Clone, Copy)]
pub(crate) struct Stopper {
    pub user: UserId,
    pub session: SessionId,
}

impl Stops {
    /// Stops agents in a conversation. Errors: `NOT_FOUND` if the user or the named agent is no
    /// member.
    pub(crate) async fn stop(
        &self,
        by: Stopper,
        conversation: ConversationId,
        asked: StopTurn,
    ) -> Result<StoppedTurns> {
        let stopped = self.work.run("stops.stop", async |tx| {
            let stopped = store::stop(tx, by, conversation, asked).await?;
            webhooks::announce_stop(tx, &stopped.agents, stopped.event).await?;
            Ok(stopped)
        });
        let agents = stopped.await?.agents;
        self.waker.stop_due().notify_one();
        for agent in &agents {
            self.streams
                .stop(*agent, conversation, asked.in_reply_to)
                .await;
        }
        Ok(StoppedTurns {
            stopped: u32::try_from(agents.len()).unwrap_or(u32::MAX),
        })
    }
}
