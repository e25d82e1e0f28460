//! An approval is made, or found.

use blindpipe_protocol::approvals::RequestedApproval;
use serde_json::Value;

use super::{super::rules::Question, lists::is_visible, read, read_one, users};
use crate::{
    auth::agent::{Agent, lock_live_token},
    error::{Code, Error, Result},
    events::Event,
    features::{
        agents,
        messages::{self, Draft, SendRequest, Sent},
    },
    ids::{ConversationId, Credential, MessageId, Principal, UserId},
    limits::quotas::MAX_OPEN_APPROVALS,
    work::Tx,
};

/// Makes an approval with its message, or finds the one that this request made before.
pub async fn request(
    tx: &Tx,
    agent: Agent,
    conversation: ConversationId,
    question: &Question,
    draft: Draft,
) -> Result<RequestedApproval> {
    // Requests of an agent come one after the other, so that none overlooks another's rows.
    agents::lock(tx, agent.id).await?;
    lock_live_token(tx, agent.id, agent.token).await?;
    let send = SendRequest {
        sender: Principal::Agent(agent.id),
        credential: Credential::Token(agent.token),
        conversation,
        draft,
    };
    if let Some(prior) = messages::find_prior(tx, &send).await? {
        return replayed(tx, agent, question, prior.message_id).await;
    }
    lock_place(tx, agent, conversation).await?;
    let sent = messages::send_within(tx, send).await?;
    if sent.duplicate {
        return replayed(tx, agent, question, sent.message_id).await;
    }
    let asked = question.asked(users(tx, conversation).await?)?;
    insert(tx, agent, question, &sent, &asked).await?;
    must_have_room(tx, agent, &asked).await?;
    let approval = read_one(tx, sent.message_id).await?;
    let event = Event::ApprovalRequested(Box::new(approval.clone()));
    let to = asked.iter().copied().map(Principal::User).collect();
    tx.emit(event, Some(conversation), to)?;
    Ok(RequestedApproval {
        approval,
        duplicate: false,
    })
}

/// The approval of an earlier message, which may be no approval's, or another one's. Its decisions
/// are for a member only.
async fn replayed(
    tx: &Tx,
    agent: Agent,
    question: &Question,
    id: MessageId,
) -> Result<RequestedApproval> {
    let found = read(tx, &[id]).await?.pop();
    let approval = found
        .filter(|approval| question.made(approval))
        .ok_or(Code::IdempotencyConflict)?;
    if !is_visible(tx, Principal::Agent(agent.id), id).await? {
        return Err(Code::NotConversationMember.into());
    }
    Ok(RequestedApproval {
        approval,
        duplicate: true,
    })
}

/// Locks a conversation of the agent's: nobody else may hold its senders up.
async fn lock_place(tx: &Tx, agent: Agent, conversation: ConversationId) -> Result<()> {
    tx.query_opt(
        "-- approvals.place
        select 1 from member where conversation_id = $1 and principal_id = $2",
        &[&conversation, &agent.id],
    )
    .await?
    .ok_or(Code::NotConversationMember)?;
    messages::lock(tx, conversation).await
}

async fn insert(
    tx: &Tx,
    agent: Agent,
    question: &Question,
    sent: &Sent,
    asked: &[UserId],
) -> Result<()> {
    tx.execute(
        "-- approvals.insert
        insert into approval (approval_id, conversation_id, seq, agent_id, kind, digest, quorum, deny_quorum, created_at,
            expires_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9::timestamptz + make_interval(secs => $10::bigint::float8))",
        &[
            &sent.message_id,
            &sent.conversation_id,
            &sent.seq,
            &agent.id,
            &question.kind,
            &question.digest.as_slice(),
            &question.quorum,
            &question.deny_quorum,
            &sent.created_at,
            &question.ttl_seconds,
        ],
    )
    .await?;
    tx.execute(
        "-- approvals.ask
        insert into approval_asked (approval_id, user_id, agent_id)
        select $1, user_id, $2 from unnest($3::uuid[]) as one (user_id)",
        &[&sent.message_id, &agent.id, &asked],
    )
    .await?;
    Ok(())
}

/// Refuses an approval that is one too many for a user who is asked.
async fn must_have_room(tx: &Tx, agent: Agent, asked: &[UserId]) -> Result<()> {
    let rows = tx
        .query(
            "-- approvals.full
            select user_id from approval_asked where agent_id = $1 and user_id = any($2) and is_open
            group by user_id having count(*) > $3 order by user_id",
            &[&agent.id, &asked, &MAX_OPEN_APPROVALS],
        )
        .await?;
    if rows.is_empty() {
        return Ok(());
    }
    let users = rows.iter().map(|row| row.get::<_, UserId>("user_id"));
    let users: Vec<Value> = users.map(|user| user.to_string().into()).collect();
    Err(Error::from(Code::ApprovalLimitExceeded)
        .with("limit", MAX_OPEN_APPROVALS)
        .with("user_ids", users))
}
