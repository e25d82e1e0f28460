//! Questions of an agent to people, as `bp ask` and `bp mcp` put them: the id of the approval is the
//! ticket, and nothing else is kept, so a process that was killed goes on where it was.

use std::time::Duration;

use blindpipe_client::{
    Agent, Approval, ApprovalState,
    agent::{ApprovalDraft, ApprovalResult},
    protocol::ids::{ConversationId, MessageId},
};
use tokio::time::{Instant, sleep};

use crate::{
    context::Context,
    failure::{Exit, Failure, Result},
};

/// Between two tries to reach a service that is away.
const AWAY_PAUSE: Duration = Duration::from_secs(2);
/// The longest wait of a single call.
const MAX_POLL: Duration = Duration::from_secs(60);

/// An agent that asks, and where.
#[derive(Clone)]
pub struct Asker {
    pub agent: Agent,
    conversation: Option<ConversationId>,
}

impl Asker {
    pub fn new(agent: Agent, conversation: Option<&str>) -> Result<Self> {
        let conversation = conversation.map(|id| {
            let fault = Failure::usage(format!("{id:?} is no conversation's id"));
            id.parse().map_err(|_| fault)
        });
        Ok(Self {
            agent,
            conversation: conversation.transpose()?,
        })
    }

    /// The conversation that was named, else the only one of the agent.
    pub async fn conversation(&self) -> Result<ConversationId> {
        if let Some(id) = self.conversation {
            return Ok(id);
        }
        let (page, _) = self.agent.conversations(None).await?;
        match &page[..] {
            [only] => Ok(only.conversation_id),
            [] => {
                let nobody = Failure::failed("nobody has a conversation with this agent yet");
                Err(nobody.remedy("`bp chat AGENT` as the person who is to be asked"))
            }
            _ => {
                let several = Failure::usage("the agent has several conversations");
                Err(several.remedy("name one: --conversation ID"))
            }
        }
    }

    pub async fn ask(&self, draft: &ApprovalDraft) -> Result<Approval> {
        let conversation = self.conversation().await?;
        Ok(self.agent.approve(conversation, draft).await?)
    }

    /// The proven result, once the question is closed; none while it is open after `time`.
    ///
    /// The service knows the question, so it may be away meanwhile, for `outage` at most. One that
    /// is away from the beginning is told at once, unless it has just answered: `was_there`.
    pub async fn wait(
        &self,
        ticket: MessageId,
        time: Duration,
        outage: Duration,
        was_there: bool,
    ) -> Result<Option<ApprovalResult>> {
        let began = Instant::now();
        let mut reached = was_there.then_some(began);
        loop {
            let left = time.saturating_sub(began.elapsed());
            let part = reached.map_or(Duration::ZERO, |_| left.min(MAX_POLL));
            match self.poll(ticket, part).await {
                Ok(None) if left.is_zero() => return Ok(None),
                Ok(None) => reached = Some(Instant::now()),
                Ok(closed) => return Ok(closed),
                Err(failure) => {
                    let is_away = failure.exit() == Exit::Unreachable;
                    let is_long = reached.is_none_or(|at| at.elapsed() > outage);
                    if !is_away || is_long || left.is_zero() {
                        return Err(failure);
                    }
                    sleep(AWAY_PAUSE.min(left)).await;
                }
            }
        }
    }

    async fn poll(&self, ticket: MessageId, time: Duration) -> Result<Option<ApprovalResult>> {
        let approval = self.agent.wait_for_approval(ticket, time).await?;
        if approval.state == ApprovalState::Open {
            return Ok(None);
        }
        let result = self.agent.approval_result(approval).await?;
        let foreign = || Failure::failed("this agent has not asked that");
        Ok(Some(result.ok_or_else(foreign)?))
    }
}

pub fn ticket(text: &str) -> Result<MessageId> {
    text.parse()
        .map_err(|_| Failure::usage(format!("{text:?} is no ticket")))
}

/// The agent that the options name, with the person's context for its credentials.
pub fn asker(
    at: Option<&Context>,
    agent: Option<&str>,
    conversation: Option<&str>,
) -> Result<Asker> {
    let builder = match at {
        Some(at) => crate::credentials::acting(at, agent)?,
        None => Agent::from_env()?,
    };
    Asker::new(builder.build(), conversation)
}
