//! Questions that a handler asks: no process waits for their answers.

use std::time::Duration;

use blindpipe_protocol::ids::{MessageId, Principal, UserId};

use super::{
    approvals::{ApprovalDraft, ApprovalResult},
    context::Context,
};
use crate::{
    Content, Error, Result,
    approvals::{Approval, ApprovalState},
};

const MAX_EXPIRY: Duration = Duration::from_secs(30 * 24 * 3600);

/// A question that may wait for 30 days: its state travels with it, and no process waits.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The handler of [`super::AgentBuilder::on_answer`] with this tag gets the answer, and that of
    /// [`super::AgentBuilder::on_decision`] a refusal and the end of the time as well.
    pub tag: String,
    /// The question.
    pub text: String,
    /// The answers to choose from. Without any, people answer in words.
    pub choices: Vec<String>,
    /// Comes back with the answer. Everybody who can read the question can read it.
    pub state: Content,
    /// The users who may answer; by default the one who was spoken to.
    pub of: Vec<UserId>,
    /// A name of this send within the event, instead of its number.
    pub key: Option<String>,
}

/// An answer to a question of this agent.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The choice.
    pub choice: Option<String>,
    /// Words instead of a choice.
    pub text: Option<String>,
    /// The question's state.
    pub state: Content,
    /// The question's text.
    pub question: String,
}

/// The answer that a decision is; none for a refusal, an end without an answer, and a plain yes.
pub(super) fn answer_in(decision: &ApprovalResult) -> Option<Answer> {
    (decision.outcome == ApprovalState::Answered).then(|| Answer {
        choice: decision.choice.clone(),
        text: decision.text.clone(),
        state: decision.state.clone(),
        question: decision.question.clone(),
    })
}

impl Context {
    /// The author of the answer, or of the first decision.
    pub(super) fn spoken_to(&self) -> Option<UserId> {
        if let Some(decision) = self.decision() {
            let first = decision.approval.decisions.first();
            return first.map(|decision| decision.user_id);
        }
        match self.sender()?.principal {
            Principal::User(id) => Some(id),
            Principal::Agent(_) => None,
        }
    }

    /// Asks a question: an approval that people answer. Its answer comes to the handler of the tag,
    /// perhaps days later, in any process.
    ///
    /// # Errors
    ///
    /// As [`Self::reply`]; [`Error::Usage`] if nobody is asked.
    pub async fn ask(&self, question: Question) -> Result<Approval> {
        let mut of = question.of;
        if of.is_empty() {
            of.extend(self.spoken_to());
        }
        if of.is_empty() {
            return Err(Error::Usage("name the users who are asked"));
        }
        let draft = ApprovalDraft {
            text: Some(question.text),
            in_words: question.choices.is_empty(),
            choices: question.choices,
            state: question.state,
            of,
            expires_in: MAX_EXPIRY,
            key: question.key,
            ..ApprovalDraft::new(question.tag, Content::new())
        };
        self.approve(&draft).await
    }

    /// Asks people of this conversation for an approval, and answers at once. The decision comes to
    /// the handler of [`super::AgentBuilder::on_decision`], perhaps days later, in any process.
    ///
    /// # Errors
    ///
    /// As [`Self::reply`].
    pub async fn approve(&self, approval: &ApprovalDraft) -> Result<Approval> {
        let conversation_id = self.conversation_id()?;
        let id = self.next_id(approval.key.clone())?;
        let caused_at = self.event().created_at;
        Box::pin(
            self.core()
                .approve(conversation_id, id, caused_at, approval),
        )
        .await
    }

    /// Takes a question back that nobody has decided.
    ///
    /// # Errors
    ///
    /// `APPROVAL_CLOSED` for one that has ended; every refusal of the service.
    pub async fn withdraw(&self, id: MessageId) -> Result<Approval> {
        self.core().withdraw(id).await
    }
}
