use blindpipe_protocol::conversations::{ConversationKind, Encryption, Role};

use super::{add_member, emit_whole, require_rotation, whole};
use crate::{
    auth::user::{User, must_be_fresh},
    db::Conn,
    error::{Code, Error, Result},
    events::Event,
    features::{agents, blocks, conversations::Conversation, relations},
    ids::{AgentId, ConversationId, Principal, PrincipalId, RelationId, UserId},
    work::Tx,
};

/// A conversation, and whether this call made it.
pub struct OpenedConversation {
    pub conversation: Conversation,
    pub is_new: bool,
}

/// A group that is to be created.
pub struct NewGroup {
    pub title: Option<String>,
    /// The other members that the maker wants.
    pub members: Vec<UserId>,
    pub encryption: Encryption,
}

/// Checks that all of these users exist for `by`; 404 with the missing ones. None is deleted, and
/// none blocks, before the transaction ends.
async fn must_exist(tx: &Tx, users: &[UserId], by: UserId) -> Result<()> {
    let mut found: Vec<UserId> = tx
        .query(
            "-- conversations.find_users
            select user_id from user_account where user_id = any($1) and deleted_at is null order by user_id for share",
            &[&users],
        )
        .await?
        .iter()
        .map(|row| row.get("user_id"))
        .collect();
    let blockers = blocks::blockers(tx, users, by).await?;
    found.retain(|user| !blockers.contains(user));
    let missing: Vec<String> = users
        .iter()
        .filter(|user| !found.contains(user))
        .map(UserId::to_string)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Error::from(Code::NotFound).with("user_ids", missing))
    }
}

pub async fn open_direct(tx: &Tx, user: UserId, other: UserId) -> Result<OpenedConversation> {
    tx.query_opt(
        "-- conversations.find_user
        select 1 from user_account where user_id = $1 and deleted_at is null for share",
        &[&other],
    )
    .await?
    .ok_or(Code::NotFound)?;
    let pair = [user.into(), other.into()];
    if blocks::is_blocked(tx, other, user.into()).await? && !exists(tx, pair).await? {
        return Err(Code::NotFound.into());
    }
    let (id, made) = insert(tx, ConversationKind::Direct, user, pair).await?;
    if made {
        add_member(tx, id, &[Principal::User(user)], Role::Owner, None).await?;
        add_member(tx, id, &[Principal::User(other)], Role::Member, None).await?;
    }
    opened(tx, user, id, made).await
}

/// Errors: `REAUTH_REQUIRED` for a first relation with somebody else's agent in an old session.
pub async fn open_agent(tx: &Tx, by: &User, agent: AgentId) -> Result<OpenedConversation> {
    let user = by.id;
    agents::find(tx, agent)
        .await?
        .ok_or(Code::AgentNotRegistered)?;
    // The caller has locked the user's account with the session.
    if blocks::is_blocked(tx, user, agent.into()).await? {
        return Err(Code::Forbidden.into());
    }
    let pair = [user.into(), agent.into()];
    let (id, made) = insert(tx, ConversationKind::Agent, user, pair).await?;
    if relations::is_first_with_stranger(tx, user, agent).await? {
        must_be_fresh(tx, by.session).await?;
    }
    let (relation, new_relation) = relations::open(tx, by, agent, id).await?;
    if new_relation && !made {
        renew_relation(tx, id, agent, relation.relation_id).await?;
    }
    if new_relation {
        tx.emit(
            Event::RelationCreated(relation.clone()),
            None,
            vec![user.into(), agent.into()],
        )?;
    }
    if made {
        add_member(tx, id, &[Principal::User(user)], Role::Owner, None).await?;
        let relation = Some(relation.relation_id);
        add_member(tx, id, &[Principal::Agent(agent)], Role::Agent, relation).await?;
    }
    opened(tx, user, id, made).await
}

pub async fn open_group(tx: &Tx, user: UserId, group: &NewGroup) -> Result<OpenedConversation> {
    must_exist(tx, &group.members, user).await?;
    let id = ConversationId::generate(tx.random());
    tx.execute(
        "-- conversations.insert_group
        insert into conversation (conversation_id, kind, created_by, title, encryption) values ($1, 'group', $2, $3, $4)",
        &[&id, &user, &group.title, &group.encryption],
    )
    .await?;
    add_member(tx, id, &[Principal::User(user)], Role::Owner, None).await?;
    let others: Vec<Principal> = group.members.iter().copied().map(Principal::User).collect();
    add_member(tx, id, &others, Role::Member, None).await?;
    opened(tx, user, id, true).await
}

async fn opened(
    tx: &Tx,
    user: UserId,
    id: ConversationId,
    is_new: bool,
) -> Result<OpenedConversation> {
    if is_new {
        emit_whole(tx, id, Event::ConversationCreated).await?;
    }
    let conversation = whole(tx, Principal::User(user), id).await?;
    Ok(OpenedConversation {
        conversation: conversation.ok_or(Code::NotFound)?,
        is_new,
    })
}

/// Whether the two have a conversation.
pub async fn exists(db: &Conn, pair: [PrincipalId; 2]) -> Result<bool> {
    let (low, high) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
    let row = db
        .query_opt(
            "-- conversations.find_pair
            select 1 from conversation where pair_low = $1 and pair_high = $2",
            &[&low, &high],
        )
        .await?;
    Ok(row.is_some())
}

/// The pair's conversation, and whether this call made it. The unique pair decides a race. The row
/// is locked either way, and its version of the rules rises, because the agent's relation may be
/// new.
async fn insert(
    tx: &Tx,
    kind: ConversationKind,
    by: UserId,
    pair: [PrincipalId; 2],
) -> Result<(ConversationId, bool)> {
    let id = ConversationId::generate(tx.random());
    let (low, high) = (pair[0].min(pair[1]), pair[0].max(pair[1]));
    let found: ConversationId = tx
        .query_one(
            "-- conversations.insert
            insert into conversation (conversation_id, kind, created_by, pair_low, pair_high) values ($1, $2, $3, $4, $5)
            on conflict on constraint conversation_pair do update set rules_version = conversation.rules_version + 1
            returning conversation_id",
            &[&id, &kind, &by, &low, &high],
        )
        .await?
        .get("conversation_id");
    Ok((found, found == id))
}

/// Puts an agent back into its old conversation under the new relation. Messages from in between
/// stay hidden from it.
async fn renew_relation(
    tx: &Tx,
    conversation: ConversationId,
    agent: AgentId,
    relation: RelationId,
) -> Result<()> {
    tx.execute(
        "-- conversations.renew_relation
        update member m set relation_id = $3, from_seq = c.last_seq from conversation c
        where m.conversation_id = $1 and m.principal_id = $2 and c.conversation_id = $1",
        &[&conversation, &agent, &relation],
    )
    .await?;
    require_rotation(tx, conversation).await
}
