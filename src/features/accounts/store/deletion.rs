//! The end of an account, in two steps: what must be dead at once, in the transaction that is answered, and what others
//! hear of it, one by one afterwards. The first takes no lock that a send waits for.

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::{
    auth::user::{User, lock_live_session},
    clock::iso,
    db::Tx,
    error::Result,
    events::EventKind,
    features::{
        devices,
        inbox::{self, Told},
        relations,
    },
    ids::{ConversationId, EventId, Principal, SessionId, TokenId, UserId},
    random::Random,
    vocabulary::{RevocationReason, Role},
};

/// What ended with an account.
pub struct Gone {
    pub at: DateTime<Utc>,
    /// Its sessions, and its agents' tokens.
    pub credentials: Vec<Uuid>,
}

/// Ends the account: nobody can sign in, no session, token or key of it counts, and its address is free.
pub async fn delete(tx: &Tx, user: &User) -> Result<Gone> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.lock
            select 1 from user_account where user_id = $1 for update",
        )
        .await?;
    tx.execute(&stmt, &[&user.id]).await?;
    lock_live_session(tx, user.id, user.session).await?;
    let tokens = end_agents(tx, user.id).await?;
    let stmt = tx
        .prepare_cached(
            "-- accounts.delete
            update user_account set deleted_at = app_now(), email = 'deleted:' || user_id, display_name = 'Deleted account',
                device_locale = '', password_hash = '', key_list_version = key_list_version + 1
            where user_id = $1
            returning deleted_at",
        )
        .await?;
    let at = tx.query_one(&stmt, &[&user.id]).await?.get("deleted_at");
    let stmt = tx
        .prepare_cached(
            "-- accounts.strip_devices
            with backups as (delete from key_backup where user_id = $1), passkeys as (delete from passkey where user_id = $1),
                 challenges as (delete from passkey_challenge where user_id = $1)
            update device set display_name = null, platform = null, revoked_at = coalesce(revoked_at, app_now())
            where user_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&user.id]).await?;
    let sessions = devices::end_all(tx, user.id, None, RevocationReason::AccountDeleted).await?;
    let credentials = sessions
        .iter()
        .map(|session: &SessionId| session.0)
        .chain(tokens)
        .collect();
    Ok(Gone { at, credentials })
}

/// Agents' rows are locked after their owner's and before all others.
async fn end_agents(tx: &Tx, owner: UserId) -> Result<Vec<Uuid>> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.end_agents
            with mine as materialized (
                select agent_id from agent where owner_user_id = $1 and state <> 'deleted' order by agent_id for no key update
            ), keys as (
                delete from agent_key k using mine where k.agent_id = mine.agent_id
            )
            update agent a set state = 'deleted', deleted_at = app_now(), unreachable_since = null
            from mine where a.agent_id = mine.agent_id",
        )
        .await?;
    tx.execute(&stmt, &[&owner]).await?;
    let stmt = tx
        .prepare_cached(
            "-- accounts.end_tokens
            update agent_token t set revoked_at = app_now(), bcrypt_hash = null, revoke_reason = 'account_deleted'
            from agent a
            where a.agent_id = t.agent_id and a.owner_user_id = $1 and t.revoked_at is null
            returning t.token_id",
        )
        .await?;
    Ok(tx
        .query(&stmt, &[&owner])
        .await?
        .iter()
        .map(|row| row.get::<_, TokenId>("token_id").0)
        .collect())
}

/// Tells of one key of a deleted user, or ends one of their relations, or takes them or an agent of theirs out of one
/// conversation; none when there is nothing left to do.
///
/// In this order: of keys hears whoever still shares a conversation, and an agent whose relation has ended is told of
/// no conversation. The relations of the user's agents end as those of every deleted agent do.
pub async fn erase_next(tx: &Tx, random: &Random) -> Result<Option<Vec<Told>>> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.to_erase
            select user_id from user_account where deleted_at is not null and erased_at is null
            order by deleted_at limit 1 for update skip locked",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[]).await? else {
        return Ok(None);
    };
    let user: UserId = row.get("user_id");
    if let Some(told) = remove_key(tx, random, user).await? {
        return Ok(Some(vec![told]));
    }
    let stmt = tx
        .prepare_cached(
            "-- accounts.next_relation
            select relation_id from relation where user_id = $1 and state = 'active' limit 1",
        )
        .await?;
    if let Some(row) = tx.query_opt(&stmt, &[&user]).await? {
        let ended = relations::end(tx, row.get("relation_id"), EventId::generate(random)).await?;
        return Ok(Some(ended.map(|(_, told)| told).unwrap_or_default()));
    }
    let stmt = tx
        .prepare_cached(
            "-- accounts.still_member
            select m.conversation_id, m.principal_id, m.principal_kind from member m
            where m.principal_id = $1 or m.principal_id in (select agent_id from agent where owner_user_id = $1)
            limit 1",
        )
        .await?;
    if let Some(row) = tx.query_opt(&stmt, &[&user]).await? {
        let who = Principal::from_row(row.get("principal_kind"), row.get("principal_id"));
        return Ok(Some(
            leave(tx, random, row.get("conversation_id"), who)
                .await?
                .into_iter()
                .collect(),
        ));
    }
    let stmt = tx
        .prepare_cached(
            "-- accounts.erased
            update user_account set erased_at = app_now() where user_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&user]).await?;
    Ok(Some(Vec::new()))
}

/// A key that the directory has shown.
async fn remove_key(tx: &Tx, random: &Random, user: UserId) -> Result<Option<Told>> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.remove_key
            with next as (select device_id, key_id from device where user_id = $1 and key_id is not null limit 1)
            update device d set key_id = null, key_version = null, key_since = null from next
            where d.user_id = $1 and d.device_id = next.device_id
            returning next.device_id, next.key_id",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[&user]).await? else {
        return Ok(None);
    };
    let (device, key): (String, String) = (row.get("device_id"), row.get("key_id"));
    let data = json!({ "user_id": user, "device_id": device, "key_id": key }).to_string();
    let (id, audience) = (
        EventId::generate(random),
        devices::audience(tx, user).await?,
    );
    inbox::append(tx, id, EventKind::KeyDeviceRemoved, None, &data, &audience)
        .await
        .map(Some)
}

/// Whoever goes last keeps no conversation alive; when an owner goes, the oldest admin, else the oldest member, follows.
async fn leave(
    tx: &Tx,
    random: &Random,
    conversation: ConversationId,
    who: Principal,
) -> Result<Option<Told>> {
    // The send path tells from the row's version that the members are others now.
    let stmt = tx
        .prepare_cached(
            "-- accounts.touch_conversation
            update conversation set rotation_required = rotation_required or kind = 'group' where conversation_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&conversation]).await?;
    let stmt = tx
        .prepare_cached(
            "-- accounts.leave
            delete from member where conversation_id = $1 and principal_id = $2 returning role, joined_at",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[&conversation, &who.id()]).await? else {
        return Ok(None);
    };
    let (role, joined): (Role, DateTime<Utc>) = (row.get("role"), row.get("joined_at"));
    if role == Role::Owner {
        let stmt = tx
            .prepare_cached(
                "-- accounts.succeed_owner
                update member set role = 'owner'
                where conversation_id = $1 and principal_id = (
                    select principal_id from member where conversation_id = $1 and principal_kind = 'user'
                    order by role <> 'admin', joined_at, principal_id limit 1)",
            )
            .await?;
        tx.execute(&stmt, &[&conversation]).await?;
    }
    let stmt = tx
        .prepare_cached(
            "-- accounts.others
            select principal_id from active_member where conversation_id = $1",
        )
        .await?;
    let others: Vec<Uuid> = tx
        .query(&stmt, &[&conversation])
        .await?
        .iter()
        .map(|row| row.get("principal_id"))
        .collect();
    let data = json!({
        "conversation_id": conversation,
        "member": {
            "principal_type": who.kind(), "principal_id": who.wire_id(), "display_name": "Deleted account", "role": role,
            "joined_at": iso(joined),
        },
        "by": who.wire_id(),
    });
    let id = EventId::generate(random);
    let kind = EventKind::MemberRemoved;
    Ok(Some(
        inbox::append(tx, id, kind, Some(conversation), &data.to_string(), &others).await?,
    ))
}
