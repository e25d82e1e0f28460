//! `POST /groups/{conversation_id}/members`, `PATCH` and `DELETE /groups/{conversation_id}/members/{principal_id}`,
//! `POST /groups/{conversation_id}/agent-instances`,
//! `DELETE /groups/{conversation_id}/agent-instances/{instance_id}`.

use std::collections::HashSet;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use super::store::{self, Addition, Removal};
use crate::{
    auth::{
        caller::Caller,
        user::{User, lock_live_session},
    },
    db::Db,
    error::{Code, Error, Result},
    features::conversations::{self, Member},
    http::{Created, Data, Json, Path},
    ids::{AgentId, ConversationId, InstanceId, Principal, UserId},
    limits::{
        Limiter,
        quotas::{GROUP_ADDITIONS_PER_TRANSACTION, MAX_GROUP_ADDITIONS},
        table::Limit,
    },
    work::UnitOfWork,
};

/// Proves that the caller administers the group, before a budget of the group's is charged.
async fn administered(db: &Db, group: ConversationId, user: UserId) -> Result<()> {
    let client = db.read().await?;
    if conversations::is_admin(&client, group, Principal::User(user)).await? {
        Ok(())
    } else {
        Err(Code::Forbidden.into())
    }
}

#[derive(Deserialize)]
pub struct AddMembers {
    user_ids: Vec<UserId>,
}

/// `POST /groups/{conversation_id}/members`: adds users to a group, as far as they exist and there is room.
///
/// Caller: user who administers the group. Limit: `group_member_add`, 5/min per group. Body `{user_ids[]}`, 1 to 100.
/// Answers 201 with [`Addition`]. Tells the members `member.added`, once for each added. They come ten at a time: after an
/// error some may be members, and are `already` when asked for again. Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn add_members(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path(group): Path<ConversationId>,
    Json(mut body): Json<AddMembers>,
) -> Result<Created<Addition>> {
    if !(1..=MAX_GROUP_ADDITIONS).contains(&body.user_ids.len()) {
        return Err(Error::field(
            "user_ids",
            "length",
            "must name 1 to 100 users",
        ));
    }
    administered(work.db(), group, user.id).await?;
    limiter.check(Limit::GroupMemberAdd, group).await?;
    let mut seen = HashSet::new();
    body.user_ids.retain(|id| seen.insert(*id));
    let mut all = Addition::default();
    for some in body.user_ids.chunks(GROUP_ADDITIONS_PER_TRANSACTION) {
        let addition = work.run("groups.add_members", async |tx| {
            lock_live_session(tx, user.id, user.session).await?;
            store::add_members(tx, group, user.id, some).await
        });
        all.join(addition.await?);
    }
    Ok(Created(all))
}

/// `DELETE /groups/{conversation_id}/members/{principal_id}`: removes a member, or leaves.
///
/// Caller: user who administers the group, or the member. An owner is removed by nobody else; when it leaves, the oldest
/// admin, else the oldest member, is the owner. Limit: `default_user`, 120/min; agents their tier. Answers 200 with
/// [`Removal`]. Tells the members and the one concerned `member.removed`, and of a new owner `conversation.updated`.
/// Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn remove_member(
    caller: Caller,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path((group, member)): Path<(ConversationId, Principal)>,
) -> Result<Data<Removal>> {
    limiter.check_default(caller.principal()).await?;
    let removal = work.run("groups.remove_member", async |tx| {
        store::remove(tx, group, caller.principal(), member).await
    });
    removal.await.map(Data)
}

/// What a member who is a user may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Owner,
    Admin,
    Member,
}

#[derive(Deserialize)]
pub struct ChangeMember {
    role: Role,
}

/// `PATCH /groups/{conversation_id}/members/{principal_id}`: makes a member an admin, a member again, or the owner; the
/// owner before is an admin then.
///
/// Caller: the group's owner. Limit: `default_user`, 120/min. Body `{role:"owner|admin|member"}`. Answers 200 with the
/// [`Member`]. Tells the members `conversation.updated` if that changed anything. Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn change_member(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path((group, member)): Path<(ConversationId, Principal)>,
    Json(body): Json<ChangeMember>,
) -> Result<Data<Member>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let member = work.run("groups.change_member", async |tx| {
        store::change_role(tx, group, user.id, member, body.role).await
    });
    member.await.map(Data)
}

#[derive(Deserialize)]
pub struct AddAgent {
    agent_id: AgentId,
    #[serde(default)]
    visibility: Visibility,
}

/// Which messages of a group an agent gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Those that name it.
    #[default]
    Addressed,
    /// All.
    All,
}

/// `POST /groups/{conversation_id}/agent-instances`: gives an agent a place in a group, or another visibility there.
///
/// Caller: user who administers the group and has an active relation with the agent. Limit: `group_agent_instance`,
/// 1/min per group. Body `{agent_id, visibility?}`. Answers 201 with [`Instance`](store::Instance), 200 if the agent was there. Tells the
/// members `member.added`. Errors: `NOT_FOUND`, `FORBIDDEN` (also with `params.limit` when the group is full),
/// `AGENT_NOT_REGISTERED`, `RELATION_REQUIRED`.
pub async fn add_agent(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path(group): Path<ConversationId>,
    Json(body): Json<AddAgent>,
) -> Result<Response> {
    administered(work.db(), group, user.id).await?;
    let AddAgent {
        agent_id,
        visibility,
    } = body;
    let related = work.run("groups.agent_right", async |tx| {
        store::related(tx, user.id, agent_id).await
    });
    related.await?;
    limiter.check(Limit::GroupAgentInstance, group).await?;
    let added = work.run("groups.add_agent", async |tx| {
        store::add_agent(tx, group, user.id, agent_id, visibility).await
    });
    let store::AddedAgent { instance, is_new } = added.await?;
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Data(instance)).into_response())
}

/// `DELETE /groups/{conversation_id}/agent-instances/{instance_id}`: takes an agent's place away.
///
/// Caller: user who administers the group. Limit: `default_user`, 120/min. Answers 200 with [`Removal`]. Tells the
/// members and the agent `member.removed`. Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn remove_agent(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path((group, instance)): Path<(ConversationId, InstanceId)>,
) -> Result<Data<Removal>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let removal = work.run("groups.remove_agent", async |tx| {
        store::remove_instance(tx, group, user.id, instance).await
    });
    removal.await.map(Data)
}
