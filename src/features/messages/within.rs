//! A send in the transaction of a larger change. It is committed with that change, or not at all.

use super::{
    SendRequest, Sent, answer,
    batch::PendingSend,
    store::{self, Decision},
};
use crate::{
    db::pin_plans,
    error::{Error, Result},
    ids::{ConversationId, MessageId},
    work::Tx,
};

/// Takes a conversation's lock, so that its members and rules stay as they are until the
/// transaction ends. Only for a caller that is proven to be a member.
pub async fn lock(tx: &Tx, conversation: ConversationId) -> Result<()> {
    store::lock_in(tx, conversation).await
}

/// Stores a message in the caller's transaction and publishes it with the other events. The caller
/// has locked the conversation, and this is the transaction's only send.
///
/// Errors: those of a send. After [`is_conflict`] the whole transaction may be tried again.
pub async fn send_within(tx: &Tx, request: SendRequest) -> Result<Sent> {
    pin_plans(tx).await?;
    let send = PendingSend::unanswered(MessageId::generate(tx.random()), request);
    match store::decide_in(tx, &send).await? {
        Decision::Stored(stored) => {
            let sent = answer::sent(&send, &stored);
            tx.publish(answer::event(&send, stored));
            Ok(sent)
        }
        Decision::Replay(prior) => answer::replay(&send.request, prior),
        Decision::Refused(refusal) => Err(answer::refused(send.request.sender, refusal)),
        Decision::Undecided => Err(Error::unavailable("the send has met another of its key")),
    }
}

/// The message that this sender has sent under the draft's own id in the last 24 hours.
pub async fn find_prior(tx: &Tx, request: &SendRequest) -> Result<Option<Sent>> {
    let prior = store::find_prior(tx, request).await?;
    prior
        .map(|prior| answer::replay(request, prior))
        .transpose()
}

/// Whether another transaction wrote the same rows at the same time. The next try may succeed.
pub fn is_conflict(error: &Error) -> bool {
    store::is_write_conflict(error)
}
