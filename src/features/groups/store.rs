use std::collections::HashSet;

use blindpipe_protocol::{
    conversations::{ConversationKind, Role},
    groups::{
        Addition, AdditionFault, AgentInstance, FailedAddition, MemberChange, Removal, Visibility,
    },
};

use super::rules;
use crate::{
    auth::user::{User, must_be_fresh},
    error::{Code, Error, Result},
    events::Event,
    features::{
        agents, blocks,
        conversations::{self, AgentMembership, Member, Place},
        relations,
    },
    ids::{AgentId, ConversationId, InstanceId, Principal, RelationId, SessionId, UserId},
    limits::quotas::MAX_GROUP_MEMBERS,
    work::Tx,
};

pub struct AddedAgent {
    pub instance: AgentInstance,
    pub is_new: bool,
}

/// Locks a group of the caller's. 404 if the caller is no member.
async fn lock(tx: &Tx, group: ConversationId, caller: Principal) -> Result<Place> {
    let place = conversations::lock(tx, group, caller).await?;
    if place.kind == ConversationKind::Group {
        Ok(place)
    } else {
        Err(Code::NotFound.into())
    }
}

async fn lock_as_admin(tx: &Tx, group: ConversationId, user: UserId) -> Result<Place> {
    let place = lock(tx, group, Principal::User(user)).await?;
    if place.is_admin() {
        Ok(place)
    } else {
        Err(Code::Forbidden.into())
    }
}

async fn members(tx: &Tx, group: ConversationId) -> Result<Vec<Principal>> {
    Ok(tx
        .query(
            "-- groups.members
            select principal_kind, principal_id from member where conversation_id = $1",
            &[&group],
        )
        .await?
        .iter()
        .map(|row| Principal::from_row(row.get("principal_kind"), row.get("principal_id")))
        .collect())
}

pub async fn add_members(
    tx: &Tx,
    group: ConversationId,
    by: UserId,
    asked: &[UserId],
) -> Result<Addition> {
    // Locks the users before the group, in the order of locks. None is deleted before it is a
    // member.
    let known: HashSet<UserId> = tx
        .query(
            "-- groups.find_users
            select user_id from user_account where user_id = any($1) and deleted_at is null order by user_id for share",
            &[&asked],
        )
        .await?
        .iter()
        .map(|row| row.get("user_id"))
        .collect();
    // A user who has blocked the caller is as unknown as a missing one, unless a member already.
    let blockers = blocks::blockers(tx, asked, by).await?;
    let known = known.into_iter().filter(|user| !blockers.contains(user));
    let known = known.collect();
    let place = lock_as_admin(tx, group, by).await?;
    let members = members(tx, group).await?;
    let free_places = MAX_GROUP_MEMBERS.saturating_sub(members.len());
    let users = members.into_iter().filter_map(|member| match member {
        Principal::User(user) => Some(user),
        Principal::Agent(_) => None,
    });
    let sorted = rules::sort(asked, &users.collect(), &known, free_places);
    let added: Vec<Principal> = sorted.added.iter().copied().map(Principal::User).collect();
    // The new members do not have a key that the others share.
    let newly_required = place.epoch > 0 && !added.is_empty();
    if !added.is_empty() {
        conversations::add_member(tx, group, &added, Role::Member, None).await?;
        conversations::touch(tx, group, newly_required).await?;
        emit_added(tx, group, Principal::User(by), &added).await?;
    }
    let failed = |ids: Vec<UserId>, reason| {
        ids.into_iter()
            .map(move |user_id| FailedAddition { user_id, reason })
    };
    Ok(Addition {
        added: sorted.added,
        already: sorted.already,
        failed: failed(sorted.unknown, AdditionFault::NotFound)
            .chain(failed(sorted.too_many, AdditionFault::GroupFull))
            .collect(),
        rotation_required: place.rotation_required || newly_required,
    })
}

async fn emit_added(
    tx: &Tx,
    group: ConversationId,
    by: Principal,
    added: &[Principal],
) -> Result<()> {
    let to = conversations::recipients(tx, group).await?;
    for member in conversations::members(tx, group, Some(added)).await? {
        let event = Event::MemberAdded(MemberChange {
            conversation_id: group,
            member,
            by,
        });
        tx.emit(event, Some(group), to.clone())?;
    }
    Ok(())
}

pub async fn remove(
    tx: &Tx,
    group: ConversationId,
    by: Principal,
    who: Principal,
) -> Result<Removal> {
    let place = lock(tx, group, by).await?;
    let member = conversations::member(tx, group, who)
        .await?
        .ok_or(Code::NotFound)?;
    if !rules::may_remove(place.role, member.role, by == who) {
        return Err(Code::Forbidden.into());
    }
    conversations::remove_member(tx, group, &member, by).await?;
    Ok(Removal {
        conversation_id: group,
        principal_id: who,
        rotation_required: true,
    })
}

pub async fn change_role(
    tx: &Tx,
    group: ConversationId,
    by: UserId,
    who: Principal,
    role: Role,
) -> Result<Member> {
    let place = lock(tx, group, Principal::User(by)).await?;
    let member = conversations::member(tx, group, who)
        .await?
        .ok_or(Code::NotFound)?;
    // An owner changes role only by making another member the owner. An agent never changes role.
    let owner_steps_down = who == Principal::User(by) && role != Role::Owner;
    if place.role != Role::Owner || owner_steps_down || member.role == Role::Agent {
        return Err(Code::Forbidden.into());
    }
    if member.role == role {
        return Ok(member);
    }
    conversations::set_role(tx, group, who, role).await?;
    conversations::touch(tx, group, false).await?;
    conversations::updated(tx, group).await?;
    conversations::member(tx, group, who)
        .await?
        .ok_or_else(|| Code::NotFound.into())
}

/// The caller's relation with an agent that is to be added.
pub async fn related(tx: &Tx, user: UserId, agent: AgentId) -> Result<RelationId> {
    agents::find(tx, agent)
        .await?
        .ok_or(Code::AgentNotRegistered)?;
    relations::active(tx, user, agent)
        .await?
        .ok_or_else(|| Code::RelationRequired.into())
}

pub async fn add_agent(
    tx: &Tx,
    group: ConversationId,
    user: &User,
    agent: AgentId,
    visibility: Visibility,
) -> Result<AddedAgent> {
    let by = user.id;
    // The agent's lock comes before the conversation's. Whether it exists is judged below.
    agents::find(tx, agent).await?;
    let place = lock_as_admin(tx, group, by).await?;
    let relation = related(tx, by, agent).await?;
    if visibility == Visibility::All && !sees_all(tx, group, agent).await? {
        must_be_fresh(tx, user.session).await?;
    }
    let is_keyed = place.epoch > 0;
    let asked = (visibility, relation, user.session);
    let renewed = renew_agent(tx, group, agent, asked, is_keyed).await?;
    if let Some(instance) = renewed {
        return Ok(AddedAgent {
            instance,
            is_new: false,
        });
    }
    if members(tx, group).await?.len() >= MAX_GROUP_MEMBERS {
        return Err(Error::from(Code::Forbidden).with("limit", MAX_GROUP_MEMBERS));
    }
    let who = Principal::Agent(agent);
    conversations::add_member(tx, group, &[who], Role::Agent, Some(relation)).await?;
    let instance = AgentInstance {
        instance_id: InstanceId::generate(tx.random()),
        agent_id: agent,
        visibility,
    };
    conversations::place_agent(tx, group, &instance, user.session).await?;
    conversations::touch(tx, group, is_keyed).await?;
    emit_added(tx, group, Principal::User(by), &[who]).await?;
    Ok(AddedAgent {
        instance,
        is_new: true,
    })
}

/// Whether the agent is an active member that sees all messages.
async fn sees_all(tx: &Tx, group: ConversationId, agent: AgentId) -> Result<bool> {
    let row = tx
        .query_opt(
            "-- groups.sees_all
            select 1 from active_member where conversation_id = $1 and principal_id = $2 and visibility = 'all'",
            &[&group, &agent],
        )
        .await?;
    Ok(row.is_some())
}

/// Changes the membership of an agent; none if it is not. An agent whose relation has
/// ended returns under the caller's relation. It sees only later messages. An agent whose
/// visibility is widened sees only the earlier ones that name it. Either is the session's work.
async fn renew_agent(
    tx: &Tx,
    group: ConversationId,
    agent: AgentId,
    (visibility, relation, session): (Visibility, RelationId, SessionId),
    is_keyed: bool,
) -> Result<Option<AgentInstance>> {
    let place = AgentMembership {
        visibility,
        relation,
        session,
    };
    let renewed = conversations::renew_agent(tx, group, agent, &place).await?;
    let Some((instance_id, is_changed)) = renewed else {
        return Ok(None);
    };
    // The other members wrote under the earlier visibility, so they hear of the change.
    conversations::touch(tx, group, is_changed && is_keyed).await?;
    if is_changed {
        conversations::updated(tx, group).await?;
    }
    Ok(Some(AgentInstance {
        instance_id,
        agent_id: agent,
        visibility,
    }))
}

pub async fn remove_instance(
    tx: &Tx,
    group: ConversationId,
    by: UserId,
    instance: InstanceId,
) -> Result<Removal> {
    lock_as_admin(tx, group, by).await?;
    let row = tx
        .query_opt(
            "-- groups.find_instance
            select principal_id from member where conversation_id = $1 and instance_id = $2",
            &[&group, &instance],
        )
        .await?
        .ok_or(Code::NotFound)?;
    remove(
        tx,
        group,
        Principal::User(by),
        Principal::Agent(row.get("principal_id")),
    )
    .await
}
