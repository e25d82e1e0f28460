//! `POST /groups/{conversation_id}/members`, `PATCH` and `DELETE
//! /groups/{conversation_id}/members/{principal_id}`, `POST
//! /groups/{conversation_id}/agent-instances`, `DELETE
//! /groups/{conversation_id}/agent-instances/{instance_id}`.

use std::collections::HashSet;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use blindpipe_protocol::groups::{AddAgent, AddMembers, Addition, ChangeMember, Removal};

use super::store;
use crate::{
    auth::{
        caller::Caller,
        user::{User, lock_live_session},
    },
    db::Db,
    error::{Code, Error, Result},
    features::conversations::{self, Member},
    http::{Created, Data, Json, Path},
    ids::{ConversationId, InstanceId, Principal, UserId},
    limits::{
        Limiter,
        quotas::{GROUP_ADDITIONS_PER_TRANSACTION, MAX_GROUP_ADDITIONS},
        table::Limit,
    },
    work::UnitOfWork,
};

/// Checks that the caller administers the group, before a limit of the group is charged.
async fn administered(db: &Db, group: ConversationId, user: UserId) -> Result<()> {
    let client = db.read().await?;
    if conversations::is_admin(&client, group, Principal::User(user)).await? {
        Ok(())
    } else {
        Err(Code::Forbidden.into())
    }
}

/// `POST /groups/{conversation_id}/members`: adds existing users to a group, up to its quota.
///
/// Caller: user who administers the group. Limit: `group_member_add`, 5/min per group. Body
/// `{user_ids[]}`, 1 to 100. Answers 201 with [`Addition`]. Publishes `member.added` to the
/// members, once for each added user. Users are added ten at a time. After an error some may be
/// members; a repeat reports them as `already`. Errors: `NOT_FOUND`, `FORBIDDEN`.
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
/// Caller: user who administers the group, or the member. Nobody else removes an owner. When the
/// owner leaves, the oldest admin becomes the owner, else the oldest member. Answers 200 with
/// [`Removal`]. Publishes `member.removed` to the members and the removed one. Publishes
/// `conversation.updated` for a new owner. Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn remove_member(
    caller: Caller,
    State(work): State<UnitOfWork>,
    Path((group, member)): Path<(ConversationId, Principal)>,
) -> Result<Data<Removal>> {
    let removal = work.run("groups.remove_member", async |tx| {
        caller.lock_live(tx).await?;
        store::remove(tx, group, caller.principal(), member).await
    });
    removal.await.map(Data)
}

/// `PATCH /groups/{conversation_id}/members/{principal_id}`: sets a member's role: admin, member or
/// owner. A new owner makes the previous owner an admin.
///
/// Caller: the group's owner. Body `{role:"owner|admin|member"}`. Answers 200 with the [`Member`].
/// Publishes `conversation.updated` to the members if anything changed. Errors: `NOT_FOUND`,
/// `FORBIDDEN`.
pub async fn change_member(
    user: User,
    State(work): State<UnitOfWork>,
    Path((group, member)): Path<(ConversationId, Principal)>,
    Json(body): Json<ChangeMember>,
) -> Result<Data<Member>> {
    let member = work.run("groups.change_member", async |tx| {
        lock_live_session(tx, user.id, user.session).await?;
        store::change_role(tx, group, user.id, member, body.role.into()).await
    });
    member.await.map(Data)
}

/// `POST /groups/{conversation_id}/agent-instances`: adds an agent to a group, or changes its
/// visibility there.
///
/// Caller: user who administers the group and has an active relation with the agent. Limit:
/// `group_agent_instance`, 1/min per group. Body `{agent_id, visibility?}`. Answers 201 with
/// [`AgentInstance`](blindpipe_protocol::groups::AgentInstance), 200 if the agent was there.
/// Publishes `member.added` to the members, or `conversation.updated` if an agent that was there
/// sees other messages from now on. Errors:
/// `NOT_FOUND`, `FORBIDDEN` (also with `params.limit` when the group is full),
/// `AGENT_NOT_REGISTERED`, `RELATION_REQUIRED`, `REAUTH_REQUIRED` (it would see all messages, by a
/// session older than 1 h without a proof of identity within 10 min).
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
        lock_live_session(tx, user.id, user.session).await?;
        store::add_agent(tx, group, &user, agent_id, visibility).await
    });
    let store::AddedAgent { instance, is_new } = added.await?;
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Data(instance)).into_response())
}

/// `DELETE /groups/{conversation_id}/agent-instances/{instance_id}`: removes an agent from a group.
///
/// Caller: user who administers the group. Answers 200 with [`Removal`]. Publishes `member.removed`
/// to the members and the agent. Errors: `NOT_FOUND`, `FORBIDDEN`.
pub async fn remove_agent(
    user: User,
    State(work): State<UnitOfWork>,
    Path((group, instance)): Path<(ConversationId, InstanceId)>,
) -> Result<Data<Removal>> {
    let removal = work.run("groups.remove_agent", async |tx| {
        lock_live_session(tx, user.id, user.session).await?;
        store::remove_instance(tx, group, user.id, instance).await
    });
    removal.await.map(Data)
}
