//! People decide, and agents withdraw.

use blindpipe_protocol::approvals::{Approval, ApprovalState, DecideApproval, SignedDecision};

use super::{
    super::rules,
    lists, lock,
    review::{self, close},
};
use crate::{
    auth::{
        agent::{Agent, lock_live_token},
        user::{User, lock_live_session},
    },
    error::{Code, Error, Result},
    features::messages::{self, Draft, SendRequest},
    ids::{ConversationId, Credential, MessageId, Principal, UserId},
    planted::PlantedBug,
    work::Tx,
};

/// Takes a user's decision, or finds that it was taken before.
pub async fn decide(
    tx: &Tx,
    user: &User,
    id: MessageId,
    decision: &DecideApproval,
    draft: Option<Draft>,
) -> Result<Approval> {
    lock_live_session(tx, user.id, user.session).await?;
    let conversation = place_of(tx, id, user.id).await?;
    let mut approval = lock(tx, id, conversation).await?;
    // They may have left before the lock.
    place_of(tx, id, user.id).await?;
    let own = approval.decisions.iter().find(|one| one.user_id == user.id);
    if let Some(own) = own.filter(|_| !PlantedBug::DecidedTwice.is_planted()) {
        must_be_same(own, decision)?;
        return Ok(approval);
    }
    let now = review::bring_up_to_date(tx, &mut approval).await?;
    if approval.state != ApprovalState::Open {
        // The approval may have closed just now.
        return tx.commit_with(closed(&approval));
    }
    rules::check(decision, &approval, now)?;
    let key = signing_key(tx, user.id, &decision.key_id.0).await?;
    rules::verify(decision, &approval, user.id, &key)?;
    let message = match draft {
        Some(draft) => Some(send(tx, user, &approval, draft).await?),
        None => None,
    };
    insert(tx, user.id, &approval, decision, message).await?;
    review::conclude(tx, id).await
}

/// The conversation of an approval that asks this user, who is a member. Errors: `NOT_FOUND`.
async fn place_of(tx: &Tx, id: MessageId, user: UserId) -> Result<ConversationId> {
    let row = tx
        .query_opt(
            "-- approvals.place_of_asked
            select a.conversation_id from approval a join approval_asked q using (approval_id)
            join active_member m on m.conversation_id = a.conversation_id and m.principal_id = q.user_id
            where a.approval_id = $1 and q.user_id = $2 and a.seq > m.from_seq",
            &[&id, &user],
        )
        .await?
        .ok_or(Code::NotFound)?;
    Ok(row.get("conversation_id"))
}

/// A user's second decision repeats the first one, whose 200 may have been lost.
fn must_be_same(own: &SignedDecision, decision: &DecideApproval) -> Result<()> {
    let answer = own.answer_digest.as_ref();
    let digest = answer.map_or([0; 32], |digest| digest.0);
    if own.decision == decision.decision && digest == rules::digest_of(decision) {
        return Ok(());
    }
    Err(Error::from(Code::AlreadyDecided).with("status", own.decision.as_str()))
}

fn closed(approval: &Approval) -> Error {
    let error = Error::from(Code::ApprovalClosed).with("state", approval.state.as_str());
    match approval.reason {
        Some(reason) => error.with("reason", reason.as_str()),
        None => error,
    }
}

/// The signing key of a current key of the user's. Errors: `KEY_MISMATCH`.
async fn signing_key(tx: &Tx, user: UserId, key_id: &str) -> Result<Vec<u8>> {
    let row = tx
        .query_opt(
            "-- approvals.signing_key
            select signing_public_key from public_key
            where principal_id = $1 and principal_kind = 'user' and key_id = $2 and retired_at is null limit 1",
            &[&user, &key_id],
        )
        .await?
        .ok_or(Code::KeyMismatch)?;
    Ok(row.get("signing_public_key"))
}

/// Sends the answer as a message of the user's.
async fn send(tx: &Tx, user: &User, approval: &Approval, draft: Draft) -> Result<MessageId> {
    let request = SendRequest {
        sender: Principal::User(user.id),
        credential: Credential::Session(user.session),
        conversation: approval.conversation_id,
        draft: rules::answer(draft, approval),
    };
    Ok(messages::send_within(tx, request).await?.message_id)
}

async fn insert(
    tx: &Tx,
    user: UserId,
    approval: &Approval,
    decision: &DecideApproval,
    message: Option<MessageId>,
) -> Result<()> {
    let answer = decision.answer_digest.as_ref();
    let answer = answer.map(|digest| digest.0.as_slice());
    tx.execute(
        "-- approvals.decide
        update approval_asked set decision = $3, decided_at = date_trunc('milliseconds', $4::timestamptz), answer_digest = $5,
            key_id = $6, signature = $7, message_id = $8, recorded_at = app_now()
        where approval_id = $1 and user_id = $2 and decision is null",
        &[
            &approval.approval_id,
            &user,
            &decision.decision,
            &decision.decided_at,
            &answer,
            &decision.key_id.0,
            &decision.signature.0.as_slice(),
            &message,
        ],
    )
    .await?;
    Ok(())
}

/// Withdraws an approval of the agent's. Returns it unchanged if it was withdrawn before.
pub async fn withdraw(tx: &Tx, agent: Agent, id: MessageId) -> Result<Approval> {
    lock_live_token(tx, agent.id, agent.token).await?;
    let caller = Principal::Agent(agent.id);
    let conversation = lists::find(tx, caller, id).await?.conversation_id;
    let mut approval = lock(tx, id, conversation).await?;
    review::bring_up_to_date(tx, &mut approval).await?;
    match approval.state {
        ApprovalState::Open => close(tx, &approval, ApprovalState::Withdrawn, None).await,
        ApprovalState::Withdrawn => Ok(approval),
        _ => tx.commit_with(closed(&approval)),
    }
}
