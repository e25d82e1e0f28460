//! `POST /agents/{agent_id}/conversations/{conversation_id}/approvals`, `GET
//! /agents/{agent_id}/approvals`, `GET /approvals`, `GET /approvals/{approval_id}`, `POST
//! /approvals/{approval_id}/decision`, `POST /approvals/{approval_id}/withdraw`.

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::approvals::{Approval, ApprovalsQuery};
use bytes::Bytes;

use super::{Tries, rules, store};
use crate::{
    auth::{agent::Agent, caller::Caller, user::User},
    db::Db,
    error::{Code, Result},
    http::{Data, List, Page, Path, Query, body},
    ids::{AgentId, ConversationId, MessageId, Principal},
    limits::quotas::{MAX_MESSAGE_BYTES, MESSAGE_ENVELOPE_BYTES},
    work::UnitOfWork,
};

async fn read(request: Request<Body>, too_large: Code) -> Result<(Parts, Bytes)> {
    let (parts, content) = request.into_parts();
    let max_bytes = MAX_MESSAGE_BYTES + MESSAGE_ENVELOPE_BYTES;
    let bytes = body::read(&parts, content, max_bytes, too_large).await?;
    Ok((parts, bytes))
}

/// `POST /agents/{agent_id}/conversations/{conversation_id}/approvals`: asks people.
///
/// Caller: agent, a member. Limit: `approval_request`, 30/min per agent. Body `{payload,
/// client_message_id?, kind:"approve|ask", digest, of?, quorum?, deny_quorum?,
/// expires_in_seconds?}`. Answers 201 with the [`Approval`] and `duplicate:false`; a replay 200,
/// `duplicate:true`. Publishes `message.created` to the members and `approval.requested` to the
/// asked. Errors: those of a send, and `APPROVAL_LIMIT_EXCEEDED`.
pub async fn request(
    agent: Agent,
    State(work): State<UnitOfWork>,
    Path((_, conversation)): Path<(AgentId, ConversationId)>,
    request: Request,
) -> Result<Response> {
    let (parts, bytes) = read(request, Code::WebhookPayloadTooLarge).await?;
    let mut tries = Tries::default();
    let requested = loop {
        let (question, draft) = rules::read_question(&bytes, &parts.headers)?;
        let requested = work.run("approvals.request", async |tx| {
            store::request(tx, agent, conversation, &question, draft).await
        });
        let requested = requested.await;
        if !tries.again(&requested) {
            break requested?;
        }
    };
    if !requested.duplicate {
        return Ok((StatusCode::CREATED, Data(requested)).into_response());
    }
    store::log_read(work.db(), agent.id, &requested.approval).await?;
    let replay = HeaderValue::from_static("true");
    Ok(([("idempotent-replayed", replay)], Data(requested)).into_response())
}

/// `POST /approvals/{approval_id}/decision`: decides, with a signature.
///
/// Caller: a user who is asked. Body `{decision, payload?, answer_digest?, decided_at, key_id,
/// signature}`. Answers 200 with the [`Approval`], also for a repeat of the same decision. Publishes
/// `message.created` to the members if there is a `payload`, then `approval.decided` and, if it was
/// the last one, `approval.closed` to the agent and the users. Errors: `NOT_FOUND`,
/// `ALREADY_DECIDED`, `APPROVAL_CLOSED`, `KEY_MISMATCH`, `SIGNATURE_INVALID`, `MESSAGE_TOO_LARGE`.
pub async fn decide(
    user: User,
    State(work): State<UnitOfWork>,
    Path(id): Path<MessageId>,
    request: Request,
) -> Result<Data<Approval>> {
    let (_, bytes) = read(request, Code::MessageTooLarge).await?;
    let mut tries = Tries::default();
    loop {
        let (decision, draft) = rules::read_decision(&bytes)?;
        let decided = work.run("approvals.decide", async |tx| {
            store::decide(tx, &user, id, &decision, draft).await
        });
        let decided = decided.await;
        if !tries.again(&decided) {
            return decided.map(Data);
        }
    }
}

/// `POST /approvals/{approval_id}/withdraw`: takes a question back.
///
/// Caller: the agent that asked. Answers 200 with the [`Approval`], also when it was withdrawn
/// before. Publishes `approval.closed`. Errors: `NOT_FOUND`, `APPROVAL_CLOSED`.
pub async fn withdraw(
    agent: Agent,
    State(work): State<UnitOfWork>,
    Path(id): Path<MessageId>,
) -> Result<Data<Approval>> {
    let mut tries = Tries::default();
    let withdrawn = loop {
        let withdrawn = work.run("approvals.withdraw", async |tx| {
            store::withdraw(tx, agent, id).await
        });
        let withdrawn = withdrawn.await;
        if !tries.again(&withdrawn) {
            break withdrawn?;
        }
    };
    store::log_read(work.db(), agent.id, &withdrawn).await?;
    Ok(Data(withdrawn))
}

/// `GET /approvals?state=&limit=&cursor=`: the approvals of the caller's conversations, newest
/// first.
///
/// Caller: user. Answers 200 with [`Approval`]s.
pub async fn list(
    user: User,
    State(db): State<Db>,
    Query(filter): Query<ApprovalsQuery>,
    Query(page): Query<Page<MessageId>>,
) -> Result<List<Approval>> {
    let caller = Principal::User(user.id);
    let client = db.read().await?;
    let approvals = store::list(&client, caller, filter.state, page.cursor, page.rows()).await?;
    Ok(page.of(approvals, |one| one.approval_id))
}

/// `GET /agents/{agent_id}/approvals?state=&limit=&cursor=`: the agent's approvals, newest first,
/// except those of conversations that it has left.
///
/// Caller: agent. Answers 200 with [`Approval`]s.
pub async fn list_of_agent(
    agent: Agent,
    State(db): State<Db>,
    Query(filter): Query<ApprovalsQuery>,
    Query(page): Query<Page<MessageId>>,
) -> Result<List<Approval>> {
    let list = db.run("approvals.list_of_agent", async |tx| {
        let caller = Principal::Agent(agent.id);
        let approvals = store::list(tx, caller, filter.state, page.cursor, page.rows()).await?;
        let list = page.of(approvals, |one| one.approval_id);
        store::record(tx, agent.id, &list.data).await?;
        Ok(list)
    });
    list.await
}

/// `GET /approvals/{approval_id}`: an approval.
///
/// Caller: a member who is a user, or the agent that asked. Answers 200 with the [`Approval`].
/// Errors: `NOT_FOUND`.
pub async fn get(
    caller: Caller,
    State(db): State<Db>,
    Path(id): Path<MessageId>,
) -> Result<Data<Approval>> {
    let found = db.run("approvals.get", async |tx| {
        let found = store::find(tx, caller.principal(), id).await?;
        if let Caller::Agent(agent) = &caller {
            store::record(tx, agent.id, std::slice::from_ref(&found)).await?;
        }
        Ok(found)
    });
    found.await.map(Data)
}
