use std::collections::HashSet;

use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::rules;
use crate::{
    db::Tx,
    error::{Code, Error, Result},
    events::EventKind,
    features::{
        agents,
        conversations::{self, Member, Place},
        inbox::{self, NewEvent, Told},
        relations,
    },
    ids::{AgentId, ConversationId, EventId, InstanceId, Principal, RelationId, UserId},
    limits::quotas::MAX_GROUP_MEMBERS,
    random::Random,
    vocabulary::{ConversationKind, Role, Visibility},
};

/// What became of the users that were to be added.
#[derive(Default, Serialize)]
pub struct Addition {
    added: Vec<UserId>,
    already: Vec<UserId>,
    failed: Vec<Failed>,
    rotation_required: bool,
}

impl Addition {
    /// Together with what became of those who came next.
    pub fn join(&mut self, next: Addition) {
        self.added.extend(next.added);
        self.already.extend(next.already);
        self.failed.extend(next.failed);
        self.rotation_required = next.rotation_required;
    }
}

/// One who was not added.
#[derive(Serialize)]
struct Failed {
    user_id: UserId,
    /// `NOT_FOUND` or `GROUP_FULL`.
    reason: &'static str,
}

/// A member that is no more.
#[derive(Serialize)]
pub struct Removal {
    conversation_id: ConversationId,
    principal_id: Principal,
    rotation_required: bool,
}

/// An agent's place in a group.
#[derive(Serialize)]
pub struct Instance {
    instance_id: InstanceId,
    agent_id: AgentId,
    visibility: Visibility,
}

pub struct AddedAgent {
    pub instance: Instance,
    pub made: bool,
    /// To be told after commit.
    pub told: Vec<Told>,
}

/// Locks a group of the caller's; 404 if it is none.
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

async fn members(tx: &Tx, group: ConversationId) -> Result<HashSet<Uuid>> {
    let stmt = tx
        .prepare_cached(
            "-- groups.members
            select principal_id from member where conversation_id = $1",
        )
        .await?;
    Ok(tx
        .query(&stmt, &[&group])
        .await?
        .iter()
        .map(|row| row.get("principal_id"))
        .collect())
}

pub async fn add_members(
    tx: &Tx,
    random: &Random,
    group: ConversationId,
    by: UserId,
    asked: &[UserId],
) -> Result<(Addition, Vec<Told>)> {
    // Before the group is locked: users come first. Those who are there do not go before they are members.
    let stmt = tx
        .prepare_cached(
            "-- groups.find_users
            select user_id from user_account where user_id = any($1) and deleted_at is null order by user_id for share",
        )
        .await?;
    let known = tx
        .query(&stmt, &[&asked])
        .await?
        .iter()
        .map(|row| row.get("user_id"))
        .collect();
    let place = lock_as_admin(tx, group, by).await?;
    let members = members(tx, group).await?;
    let room = MAX_GROUP_MEMBERS.saturating_sub(members.len());
    let sorted = rules::sort(
        asked,
        &members.into_iter().map(UserId).collect(),
        &known,
        room,
    );
    let added: Vec<Principal> = sorted.added.iter().copied().map(Principal::User).collect();
    // A key that the others share is one that these do not have.
    let newly_required = place.epoch > 0 && !added.is_empty();
    let mut told = Vec::new();
    if !added.is_empty() {
        conversations::add_member(tx, group, &added, Role::Member, None).await?;
        conversations::touch(tx, group, newly_required).await?;
        told = tell_added(tx, random, group, Principal::User(by), &added).await?;
    }
    let failed = |ids: Vec<UserId>, reason| {
        ids.into_iter()
            .map(move |user_id| Failed { user_id, reason })
    };
    Ok((
        Addition {
            added: sorted.added,
            already: sorted.already,
            failed: failed(sorted.unknown, "NOT_FOUND")
                .chain(failed(sorted.too_many, "GROUP_FULL"))
                .collect(),
            rotation_required: place.rotation_required || newly_required,
        },
        told,
    ))
}

async fn tell_added(
    tx: &Tx,
    random: &Random,
    group: ConversationId,
    by: Principal,
    added: &[Principal],
) -> Result<Vec<Told>> {
    let to: Vec<Uuid> = conversations::recipients(tx, group)
        .await?
        .into_iter()
        .map(Principal::id)
        .collect();
    let joined = conversations::members(tx, group, Some(added)).await?;
    let events: Result<Vec<NewEvent>> = joined
        .iter()
        .map(|member| {
            concerning(
                random,
                EventKind::MemberAdded,
                group,
                member,
                by,
                to.clone(),
            )
        })
        .collect();
    inbox::append_all(tx, &events?).await
}

fn concerning(
    random: &Random,
    kind: EventKind,
    group: ConversationId,
    member: &Member,
    by: Principal,
    to: Vec<Uuid>,
) -> Result<NewEvent> {
    let data = json!({ "conversation_id": group, "member": member, "by": by });
    NewEvent::new(EventId::generate(random), kind, Some(group), &data, to)
}

pub async fn remove(
    tx: &Tx,
    random: &Random,
    group: ConversationId,
    by: Principal,
    who: Principal,
) -> Result<(Removal, Vec<Told>)> {
    let place = lock(tx, group, by).await?;
    let member = conversations::member(tx, group, who)
        .await?
        .ok_or(Code::NotFound)?;
    if !rules::may_remove(place.role, member.role, by == who) {
        return Err(Code::Forbidden.into());
    }
    let mut to: Vec<Uuid> = conversations::recipients(tx, group)
        .await?
        .into_iter()
        .map(Principal::id)
        .collect();
    // Also an agent that hears nothing any more is told that it is out.
    if !to.contains(&who.id()) {
        to.push(who.id());
    }
    let stmt = tx
        .prepare_cached(
            "-- groups.remove
            delete from member where conversation_id = $1 and principal_id = $2",
        )
        .await?;
    tx.execute(&stmt, &[&group, &who.id()]).await?;
    conversations::touch(tx, group, true).await?;
    let has_new_owner = member.role == Role::Owner && succeed(tx, group).await?;
    let removed = concerning(random, EventKind::MemberRemoved, group, &member, by, to)?;
    let mut told = inbox::append_all(tx, &[removed]).await?;
    if has_new_owner {
        told.extend(conversations::updated(tx, group, EventId::generate(random)).await?);
    }
    Ok((
        Removal {
            conversation_id: group,
            principal_id: who,
            rotation_required: true,
        },
        told,
    ))
}

/// The oldest admin, else the oldest member, is the owner now; false if nobody is left.
async fn succeed(tx: &Tx, group: ConversationId) -> Result<bool> {
    let stmt = tx
        .prepare_cached(
            "-- groups.succeed
            update member set role = 'owner' where conversation_id = $1 and principal_id = (
                select principal_id from member where conversation_id = $1 and principal_kind = 'user'
                order by role = 'admin' desc, joined_at, principal_id limit 1
            )",
        )
        .await?;
    Ok(tx.execute(&stmt, &[&group]).await? > 0)
}

pub async fn change_role(
    tx: &Tx,
    random: &Random,
    group: ConversationId,
    by: UserId,
    who: Principal,
    role: Role,
) -> Result<(Member, Vec<Told>)> {
    let place = lock(tx, group, Principal::User(by)).await?;
    let member = conversations::member(tx, group, who)
        .await?
        .ok_or(Code::NotFound)?;
    // An owner becomes something else by making another one the owner; an agent is never more than that.
    let owner_steps_down = who == Principal::User(by) && role != Role::Owner;
    if place.role != Role::Owner || owner_steps_down || member.role == Role::Agent {
        return Err(Code::Forbidden.into());
    }
    if member.role == role {
        return Ok((member, Vec::new()));
    }
    let stmt = tx
        .prepare_cached(
            "-- groups.change_role
            update member set role = case when principal_id = $2 then $3 else 'admin' end
            where conversation_id = $1 and (principal_id = $2 or $3 = 'owner' and role = 'owner')",
        )
        .await?;
    tx.execute(&stmt, &[&group, &who.id(), &role]).await?;
    conversations::touch(tx, group, false).await?;
    let told = conversations::updated(tx, group, EventId::generate(random)).await?;
    Ok((
        conversations::member(tx, group, who)
            .await?
            .ok_or(Code::NotFound)?,
        told,
    ))
}

/// The caller's relation with an agent that is to join.
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
    random: &Random,
    group: ConversationId,
    by: UserId,
    agent: AgentId,
    visibility: Visibility,
) -> Result<AddedAgent> {
    let place = lock_as_admin(tx, group, by).await?;
    let relation = related(tx, by, agent).await?;
    // One whose relation has ended comes back by the caller's, and sees what is said from now on.
    let stmt = tx
        .prepare_cached(
            "-- groups.renew_agent
            update member m set visibility = $3,
                relation_id = case when r.state = 'revoked' then $4 else m.relation_id end,
                from_seq = case when r.state = 'revoked' then c.last_seq else m.from_seq end
            from conversation c, relation r
            where m.conversation_id = $1 and m.principal_id = $2 and c.conversation_id = $1 and r.relation_id = m.relation_id
            returning m.instance_id",
        )
        .await?;
    if let Some(row) = tx
        .query_opt(&stmt, &[&group, &agent, &visibility, &relation])
        .await?
    {
        conversations::touch(tx, group, false).await?;
        let instance = Instance {
            instance_id: row.get("instance_id"),
            agent_id: agent,
            visibility,
        };
        return Ok(AddedAgent {
            instance,
            made: false,
            told: Vec::new(),
        });
    }
    if members(tx, group).await?.len() >= MAX_GROUP_MEMBERS {
        return Err(Error::from(Code::Forbidden).with("limit", MAX_GROUP_MEMBERS));
    }
    let who = Principal::Agent(agent);
    conversations::add_member(tx, group, &[who], Role::Agent, Some(relation)).await?;
    let instance = Instance {
        instance_id: InstanceId::generate(random),
        agent_id: agent,
        visibility,
    };
    let stmt = tx
        .prepare_cached(
            "-- groups.place_agent
            update member set visibility = $3, instance_id = $4 where conversation_id = $1 and principal_id = $2",
        )
        .await?;
    tx.execute(&stmt, &[&group, &agent, &visibility, &instance.instance_id])
        .await?;
    conversations::touch(tx, group, place.epoch > 0).await?;
    let told = tell_added(tx, random, group, Principal::User(by), &[who]).await?;
    Ok(AddedAgent {
        instance,
        made: true,
        told,
    })
}

pub async fn remove_instance(
    tx: &Tx,
    random: &Random,
    group: ConversationId,
    by: UserId,
    instance: InstanceId,
) -> Result<(Removal, Vec<Told>)> {
    lock_as_admin(tx, group, by).await?;
    let stmt = tx
        .prepare_cached(
            "-- groups.find_instance
            select principal_id from member where conversation_id = $1 and instance_id = $2",
        )
        .await?;
    let row = tx
        .query_opt(&stmt, &[&group, &instance])
        .await?
        .ok_or(Code::NotFound)?;
    remove(
        tx,
        random,
        group,
        Principal::User(by),
        Principal::Agent(row.get("principal_id")),
    )
    .await
}
