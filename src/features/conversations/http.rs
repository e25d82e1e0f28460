//! `POST` and `GET /conversations`, `GET` and `PATCH /conversations/{conversation_id}`, `POST
//! /conversations/{conversation_id}/read`, `GET /agents/{agent_id}/conversations`, `POST /groups`.

use std::collections::HashSet;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use blindpipe_protocol::conversations::{
    ChangeConversation, Encryption, MarkRead, OpenConversation, OpenGroup, ReadMark,
};

use super::{Conversation, ReadMarks, store};
use crate::{
    access_log::{self, AccessKind, Read},
    auth::{
        agent::Agent,
        caller::Caller,
        user::{User, lock_live_session},
    },
    db::{Conn, Db},
    error::{Code, Error, Result},
    http::{Data, Json, List, Path, Query, page::Page},
    ids::{ConversationId, Principal, UserId},
    limits::{Limiter, quotas::MAX_GROUP_MEMBERS, table::Limit},
    work::UnitOfWork,
};

/// Builds the requested group, without its maker and without duplicates.
fn new_group(group: OpenGroup, maker: UserId) -> Result<store::NewGroup> {
    let mut seen = HashSet::from([maker]);
    let members = group.member_ids.into_iter().filter(|id| seen.insert(*id));
    let members: Vec<UserId> = members.collect();
    if seen.len() > MAX_GROUP_MEMBERS {
        return Err(Error::field(
            "member_ids",
            "max",
            "a group has at most 500 members",
        ));
    }
    Ok(store::NewGroup {
        title: group.title.map(|text| text.0),
        members,
        encryption: group.encryption,
    })
}

/// `POST /conversations`: opens a conversation with an agent, another user or a group.
///
/// Caller: user. Limit: `conversation_open`, 20/h, for new ones only. Body `{type:"agent",
/// agent_id}`, `{type:"direct", user_id}` or `{type:"group", title?, member_ids[], encryption?}`.
/// Answers 201 with the [`Conversation`], or 200 with the existing one of the two. Publishes
/// `conversation.created` to the members, for agents after `relation.created`. Errors:
/// `AGENT_NOT_REGISTERED`, `NOT_FOUND` (with the unknown `user_ids`), `FORBIDDEN` (the caller has
/// blocked the agent), `REAUTH_REQUIRED` (the first relation with somebody else's agent, in a session
/// older than 1 h without a proof of identity within 10 min).
pub async fn open(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Json(body): Json<OpenConversation>,
) -> Result<Response> {
    open_one(&work, &limiter, &user, body).await
}

/// `POST /groups`: opens a group.
///
/// Caller: user. Body `{title?, member_ids[], encryption?}`, at most 500 members with the caller.
/// The rest is as for `POST /conversations`.
pub async fn open_group(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Json(body): Json<OpenGroup>,
) -> Result<Response> {
    open_one(&work, &limiter, &user, OpenConversation::Group(body)).await
}

/// Whether the two already have the conversation.
async fn is_there(db: &Db, user: &User, body: &OpenConversation) -> Result<bool> {
    let other = match body {
        OpenConversation::Direct { user_id } => (*user_id).into(),
        OpenConversation::Agent { agent_id } => (*agent_id).into(),
        OpenConversation::Group(_) => return Ok(false),
    };
    store::exists(&db.read().await?, [user.id.into(), other]).await
}

/// Opens a conversation. Only one that is new is charged to `conversation_open`.
async fn open_one(
    work: &UnitOfWork,
    limiter: &Limiter,
    user: &User,
    body: OpenConversation,
) -> Result<Response> {
    let reservation = match is_there(work.db(), user, &body).await? {
        true => None,
        false => Some(limiter.reserve(Limit::ConversationOpen, user.id).await?),
    };
    let opened = work.run("conversations.open", async |tx| {
        lock_live_session(tx, user.id, user.session).await?;
        let by = user;
        let user = user.id;
        match body {
            OpenConversation::Direct { user_id } if user_id == user => {
                Err(Error::field("user_id", "self", "a conversation needs two"))
            }
            OpenConversation::Direct { user_id } => store::open_direct(tx, user, user_id).await,
            OpenConversation::Agent { agent_id } => store::open_agent(tx, by, agent_id).await,
            OpenConversation::Group(group) => {
                store::open_group(tx, user, &new_group(group, user)?).await
            }
        }
    });
    let opened = opened.await;
    let is_new = opened.as_ref().is_ok_and(|opened| opened.is_new);
    if let Some(reservation) = reservation.filter(|_| !is_new) {
        limiter.refund(reservation).await;
    }
    let store::OpenedConversation {
        conversation,
        is_new,
    } = opened?;
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Data(conversation)).into_response())
}

/// `GET /conversations`: the caller's conversations, latest activity first, without their members.
///
/// Caller: user. Limit: `user_conversations_list`, 30/min. Query `limit`, `cursor` (the
/// `last_message_id`, or the id if there is none, of the last item seen). Answers 200 with
/// [`Conversation`]s.
pub async fn list(
    user: User,
    State(db): State<Db>,
    Query(page): Query<Page<ConversationId>>,
) -> Result<List<Conversation>> {
    page_of(&db.read().await?, Principal::User(user.id), &page).await
}

/// `GET /agents/{agent_id}/conversations`: the agent's conversations, except those whose relation
/// has ended. The rest is as for `GET /conversations`.
///
/// Caller: agent. Limit: `agent_conversations`, 30/min per agent.
pub async fn list_of_agent(
    agent: Agent,
    State(db): State<Db>,
    Query(page): Query<Page<ConversationId>>,
) -> Result<List<Conversation>> {
    let list = db.run("conversations.list_of_agent", async |tx| {
        let list = page_of(tx, Principal::Agent(agent.id), &page).await?;
        let reads: Vec<Read> = list
            .data
            .iter()
            .map(|one| Read::of(one.conversation_id))
            .collect();
        access_log::record(tx, agent.id, AccessKind::ConversationList, &reads).await?;
        Ok(list)
    });
    list.await
}

async fn page_of(
    client: &Conn,
    viewer: Principal,
    page: &Page<ConversationId>,
) -> Result<List<Conversation>> {
    let conversations = store::page(client, viewer, page.cursor, page.rows()).await?;
    Ok(page.of(conversations, |one| {
        one.last_message_id
            .map_or(one.conversation_id, |id| ConversationId(id.0))
    }))
}

/// `GET /conversations/{conversation_id}`: a conversation with its members.
///
/// Caller: a member. Answers 200 with the [`Conversation`]. Errors:
/// `NOT_FOUND`.
pub async fn get(
    caller: Caller,
    State(db): State<Db>,
    Path(id): Path<ConversationId>,
) -> Result<Data<Conversation>> {
    let conversation = match caller {
        Caller::User(user) => store::whole(&db.read().await?, Principal::User(user.id), id).await?,
        Caller::Agent(agent) => {
            let read = db.run("conversations.get_as_agent", async |tx| {
                let found = store::whole(tx, Principal::Agent(agent.id), id).await?;
                let reads = found.as_ref().map(|_| Read::of(id));
                access_log::record(tx, agent.id, AccessKind::Conversation, reads.as_slice())
                    .await?;
                Ok(found)
            });
            read.await?
        }
    };
    Ok(Data(conversation.ok_or(Code::NotFound)?))
}

/// `PATCH /conversations/{conversation_id}`: requires encrypted payloads from now on, or changes a
/// group's title.
///
/// Caller: a user who is a member, in a group an admin. Body `{encryption:"required"}`, `{title}`
/// or both. Answers 200 with the [`Conversation`]. Publishes `conversation.updated` to the members
/// if anything changed. Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn change(
    user: User,
    State(work): State<UnitOfWork>,
    Path(id): Path<ConversationId>,
    Json(body): Json<ChangeConversation>,
) -> Result<Data<Conversation>> {
    if body.encryption == Some(Encryption::Optional) {
        return Err(Error::field(
            "encryption",
            "one_way",
            "once required it stays so; only \"required\" can be set",
        ));
    }
    if body.encryption.is_none() && body.title.is_none() {
        return Err(Error::field(
            "encryption",
            "required",
            "nothing to change: encryption or title",
        ));
    }
    let change = store::Change {
        encryption_required: body.encryption.is_some(),
        title: body.title.map(|text| text.0),
    };
    let conversation = work
        .run("conversations.change", async |tx| {
            lock_live_session(tx, user.id, user.session).await?;
            store::change(tx, id, user.id, &change).await
        })
        .await?;
    Ok(Data(conversation))
}

/// `POST /conversations/{conversation_id}/read`: the caller has read up to a message. The mark
/// never moves back.
///
/// Caller: a member. Body `{message_id}`. Answers 200 with [`ReadMark`]. If the mark moved,
/// publishes `message.read` to the members who are users. With more than 8 of them, each reader's
/// newest mark is published a second later. With more than 50, only the reader's other devices get
/// it, at once. Errors: `NOT_FOUND`.
pub async fn read(
    caller: Caller,
    State(marks): State<ReadMarks>,
    Path(id): Path<ConversationId>,
    Json(body): Json<MarkRead>,
) -> Result<Data<ReadMark>> {
    let mark = marks
        .read_up_to(id, caller.principal(), body.message_id)
        .await?;
    Ok(Data(ReadMark {
        conversation_id: id,
        message_id: mark.message,
        unread_count: mark.unread_count,
    }))
}
