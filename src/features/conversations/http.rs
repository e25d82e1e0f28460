//! `POST` and `GET /conversations`, `GET` and `PATCH /conversations/{conversation_id}`,
//! `POST /conversations/{conversation_id}/read`, `GET /agents/{agent_id}/conversations`, `POST /groups`.

use std::collections::HashSet;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use super::{Conversation, store};
use crate::{
    auth::{
        agent::Agent,
        caller::Caller,
        user::{User, lock_live_session},
    },
    db::Db,
    error::{Code, Error, Result},
    http::{Data, Json, List, Path, Query, page::Page},
    ids::{AgentId, ConversationId, MessageId, Principal, UserId},
    limits::{Limiter, quotas::MAX_GROUP_MEMBERS, table::Limit},
    validation::Text,
    work::UnitOfWork,
};

/// With whom.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum OpenConversation {
    /// An agent; makes the relation too.
    Agent { agent_id: AgentId },
    /// Another user.
    Direct { user_id: UserId },
    /// Any number of users.
    Group(OpenGroup),
}

/// A group to be.
#[derive(Deserialize)]
pub struct OpenGroup {
    title: Option<Text<1, 200>>,
    #[serde(default)]
    member_ids: Vec<UserId>,
    #[serde(default)]
    encryption: Encryption,
}

/// What payloads a conversation takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    #[default]
    Optional,
    Required,
}

impl OpenGroup {
    /// Without its maker, and nobody twice.
    fn by(self, user: UserId) -> Result<store::NewGroup> {
        let mut seen = HashSet::from([user]);
        let members: Vec<UserId> = self
            .member_ids
            .into_iter()
            .filter(|id| seen.insert(*id))
            .collect();
        if seen.len() > MAX_GROUP_MEMBERS {
            return Err(Error::field(
                "member_ids",
                "max",
                "a group has at most 500 members",
            ));
        }
        let encryption = if self.encryption == Encryption::Required {
            "required"
        } else {
            "optional"
        };
        Ok(store::NewGroup {
            title: self.title.map(|text| text.0),
            members,
            encryption,
        })
    }
}

/// `POST /conversations`: opens a conversation with an agent, another user or a group.
///
/// Caller: user. Limit: `default_user`, 120/min. Body `{type:"agent", agent_id}`, `{type:"direct", user_id}` or
/// `{type:"group", title?, member_ids[], encryption?}`. Answers 201 with the [`Conversation`], or 200 with the one that
/// the two have already. Tells the members `conversation.created`, for agents `relation.created` before it. Errors:
/// `AGENT_NOT_REGISTERED`, `NOT_FOUND` (with the unknown `user_ids`).
pub async fn open(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Json(body): Json<OpenConversation>,
) -> Result<Response> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    open_one(&work, &user, body).await
}

/// `POST /groups`: opens a group.
///
/// Caller: user. Limit: `default_user`, 120/min. Body `{title?, member_ids[], encryption?}`, at most 500 members with
/// the caller. The rest as `POST /conversations`.
pub async fn open_group(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Json(body): Json<OpenGroup>,
) -> Result<Response> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    open_one(&work, &user, OpenConversation::Group(body)).await
}

async fn open_one(work: &UnitOfWork, user: &User, body: OpenConversation) -> Result<Response> {
    let opened = work.run("conversations.open", async |tx| {
        lock_live_session(tx, user.id, user.session).await?;
        let user = user.id;
        match body {
            OpenConversation::Direct { user_id } if user_id == user => {
                Err(Error::field("user_id", "self", "a conversation needs two"))
            }
            OpenConversation::Direct { user_id } => store::open_direct(tx, user, user_id).await,
            OpenConversation::Agent { agent_id } => store::open_agent(tx, user, agent_id).await,
            OpenConversation::Group(group) => store::open_group(tx, user, &group.by(user)?).await,
        }
    });
    let store::Opened {
        conversation,
        is_new,
    } = opened.await?;
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Data(conversation)).into_response())
}

/// `GET /conversations`: the caller's conversations, latest activity first, without their members.
///
/// Caller: user. Limit: `user_conversations_list`, 30/min. Query `limit`, `cursor` (the `last_message_id`, or the id if
/// there is none, of the last item seen). Answers 200 with [`Conversation`]s.
pub async fn list(
    user: User,
    limiter: Limiter,
    State(db): State<Db>,
    Query(page): Query<Page<ConversationId>>,
) -> Result<List<Conversation>> {
    limiter.check(Limit::UserConversationsList, user.id).await?;
    page_of(&db, Principal::User(user.id), &page).await
}

/// `GET /agents/{agent_id}/conversations`: the same for an agent; not those whose relation has ended.
///
/// Caller: agent. Limit: `agent_conversations`, 30/min per agent.
pub async fn list_of_agent(
    agent: Agent,
    limiter: Limiter,
    State(db): State<Db>,
    Query(page): Query<Page<ConversationId>>,
) -> Result<List<Conversation>> {
    limiter.check(Limit::AgentConversations, agent.id).await?;
    page_of(&db, Principal::Agent(agent.id), &page).await
}

async fn page_of(
    db: &Db,
    viewer: Principal,
    page: &Page<ConversationId>,
) -> Result<List<Conversation>> {
    let client = db.read().await?;
    let conversations = store::page(&client, viewer, page.cursor, page.rows()).await?;
    Ok(page.of(conversations, |one| {
        one.last_message_id
            .map_or(one.conversation_id, |id| ConversationId(id.0))
    }))
}

/// `GET /conversations/{conversation_id}`: a conversation with its members.
///
/// Caller: a member. Limit: `default_user`, 120/min; agents their tier. Answers 200 with the [`Conversation`]. Errors:
/// `NOT_FOUND`.
pub async fn get(
    caller: Caller,
    limiter: Limiter,
    State(db): State<Db>,
    Path(id): Path<ConversationId>,
) -> Result<Data<Conversation>> {
    limiter.check_default(caller.principal()).await?;
    let client = db.read().await?;
    let conversation = store::whole(&client, caller.principal(), id).await?;
    Ok(Data(conversation.ok_or(Code::NotFound)?))
}

#[derive(Deserialize)]
pub struct ChangeConversation {
    encryption: Option<Encryption>,
    title: Option<Text<1, 200>>,
}

/// `PATCH /conversations/{conversation_id}`: from now on only encrypted payloads; or another title, of a group.
///
/// Caller: a user who is a member, of a group an admin. Limit: `default_user`, 120/min. Body `{encryption:"required"}`,
/// `{title}` or both. Answers 200 with the [`Conversation`]. Tells the members `conversation.updated` if that changed
/// anything. Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn change(
    user: User,
    limiter: Limiter,
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
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let change = store::Change {
        encryption_required: body.encryption.is_some(),
        title: body.title.map(|text| text.0),
    };
    let conversation = work
        .run("conversations.change", async |tx| {
            store::change(tx, id, user.id, &change).await
        })
        .await?;
    Ok(Data(conversation))
}

#[derive(Deserialize)]
pub struct MarkRead {
    message_id: MessageId,
}

/// How far the caller has read.
#[derive(Serialize)]
pub struct Marked {
    conversation_id: ConversationId,
    message_id: MessageId,
    unread_count: i64,
}

/// `POST /conversations/{conversation_id}/read`: the caller has read up to a message; the mark never moves back.
///
/// Caller: a member. Limit: `default_user`, 120/min; agents their tier. Body `{message_id}`. Answers 200 with
/// [`Marked`]. If the mark moved, tells the members who are users `message.read`; of more than 50 the reader alone, for
/// its other devices. Errors: `NOT_FOUND`.
pub async fn read(
    caller: Caller,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path(id): Path<ConversationId>,
    Json(body): Json<MarkRead>,
) -> Result<Data<Marked>> {
    limiter.check_default(caller.principal()).await?;
    let mark = work
        .run("conversations.read", async |tx| {
            store::read_up_to(tx, id, caller.principal(), body.message_id).await
        })
        .await?;
    Ok(Data(Marked {
        conversation_id: id,
        message_id: mark.message,
        unread_count: mark.unread_count,
    }))
}
