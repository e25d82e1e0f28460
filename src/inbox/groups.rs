//! Consumer groups of agents: the third way to read an inbox, split over sockets.
//!
//! Postgres alone decides what a socket may be given. Each step locks the group's row, so the steps
//! of all nodes come one after the other. A conversation belongs to the live socket with the highest
//! hash. A socket is given an event only if no other socket has an unfinished event of the same
//! conversation. So a conversation moves when its old owner has acked, or when the lease of the old
//! owner has ended.
//!
//! Why: ADR 97.

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use crate::{
    db::{Conn, Db, Tx},
    error::Result,
    ids::{AgentId, ConnectionId, ConversationId, TokenId},
    limits::quotas::{
        AGENT_GROUP_RETENTION_DAYS, GROUP_LEASE, MAX_AGENT_GROUPS, MAX_GIVEN_EVENTS,
        MAX_GROUP_WINDOW_EVENTS, MAX_PAGE_EVENTS,
    },
};

/// A socket's place in a group.
#[derive(Clone)]
pub struct Member {
    pub agent: AgentId,
    pub group: String,
    pub connection: ConnectionId,
    /// The token that vouches for it.
    pub token: TokenId,
    /// The epoch of all numbers that the socket sees.
    pub epoch: u64,
}

/// The outcome of a step.
pub struct Step {
    /// The last number of the inbox.
    pub head: i64,
    /// The live sockets of the group.
    pub owners: Vec<ConnectionId>,
    /// The events that this socket is to send now, in order.
    pub given: Vec<i64>,
    /// The place of the last of them, or what the caller said.
    pub place: i64,
}

/// A socket of a group, as its agent's owner sees it.
pub struct ShownMember {
    pub connection: ConnectionId,
    pub group: String,
    /// The conversations of which it has events that it has not acked.
    pub conversations: i64,
    /// The events behind the group's durable ack.
    pub lag: i64,
}

/// The socket that a conversation belongs to: the highest of the hashes of all sockets with it.
pub fn owner(conversation: ConversationId, connections: &[ConnectionId]) -> Option<ConnectionId> {
    connections.iter().copied().max_by_key(|connection| {
        let hash = Sha256::new()
            .chain_update(connection.as_bytes())
            .chain_update(conversation.as_bytes());
        <[u8; 32]>::from(hash.finalize())
    })
}

/// Adds a socket to a group, which begins at the agent's own ack. Returns the group's durable ack,
/// or none if the agent has too many groups.
pub async fn join(db: &Db, member: &Member) -> Result<Option<i64>> {
    db.run("inbox.join_group", async |tx| {
        let acked = join_in(tx, member).await?;
        if acked.is_some() {
            tx.execute(
                "-- inbox.join_group.member
                insert into agent_group_member (connection_id, agent_id, name, lease_until)
                values ($1, $2, $3, clock_timestamp() + make_interval(secs => $4))",
                &[
                    &member.connection,
                    &member.agent,
                    &member.group,
                    &GROUP_LEASE.as_secs_f64(),
                ],
            )
            .await?;
        }
        Ok(acked)
    })
    .await
}

async fn join_in(tx: &Tx, member: &Member) -> Result<Option<i64>> {
    // The lock makes joins of one agent come one after the other, so that the count holds.
    let acked: i64 = tx
        .query_one(
            "-- inbox.join_group.lock
            select acked_seq from inbox_reader where principal_id = $1 and device_id = '' for update",
            &[&member.agent],
        )
        .await?
        .get("acked_seq");
    tx.execute(
        "-- inbox.join_group.expire
        delete from agent_group g
        where g.agent_id = $1 and g.used_at < app_now() - make_interval(days => $2)
            and not exists (select from agent_group_member m where m.agent_id = g.agent_id and m.name = g.name
                and m.lease_until > clock_timestamp())",
        &[&member.agent, &AGENT_GROUP_RETENTION_DAYS],
    )
    .await?;
    let row = tx
        .query_opt(
            "-- inbox.join_group
            insert into agent_group (agent_id, name, acked_seq)
            select $1, $2, $3
            where (select count(*) from agent_group where agent_id = $1 and name <> $2) < $4
            on conflict (agent_id, name) do update set used_at = app_now()
            returning acked_seq",
            &[&member.agent, &member.group, &acked, &MAX_AGENT_GROUPS],
        )
        .await?;
    Ok(row.map(|row| row.get("acked_seq")))
}

/// Removes a socket from a group after its last acks. Events without an ack come again elsewhere
/// when its lease is over.
pub async fn leave(db: &Db, member: &Member, acks: &[i64]) -> Result<()> {
    db.run("inbox.leave_group", async |tx| {
        lock(tx, member).await?;
        if renew(tx, member).await? {
            ack(tx, member, acks).await?;
        }
        tx.execute(
            "-- inbox.leave_group
            with left_behind as (
                update agent_group_member set is_live = false where connection_id = $1
            )
            update agent_group set used_at = app_now() where agent_id = $2 and name = $3",
            &[&member.connection, &member.agent, &member.group],
        )
        .await?;
        Ok(())
    })
    .await
}

/// Renews the socket's lease, writes its acks and chooses what it is given next. The answer has
/// everything that the socket was given after `place`, so a step whose answer was lost loses
/// nothing. None if the lease is lost, the token has ended, or Postgres has another epoch.
pub async fn step(db: &Db, member: &Member, acks: &[i64], place: i64) -> Result<Option<Step>> {
    db.run("inbox.step_group", async |tx| {
        lock(tx, member).await?;
        if !renew(tx, member).await? {
            return Ok(None);
        }
        ack(tx, member, acks).await?;
        let (head, owners) = choose(tx, member).await?;
        let (given, last) = unsent(tx, member, place).await?;
        Ok(Some(Step {
            head,
            owners,
            given,
            place: last.unwrap_or(place),
        }))
    })
    .await
}

async fn lock(tx: &Tx, member: &Member) -> Result<()> {
    tx.execute(
        "-- inbox.group_lock
        select from agent_group where agent_id = $1 and name = $2 for update",
        &[&member.agent, &member.group],
    )
    .await?;
    Ok(())
}

/// Drops the sockets of the group whose leases are over, and renews this one's. False if its lease
/// or its token has ended, or Postgres has another epoch.
async fn renew(tx: &Tx, member: &Member) -> Result<bool> {
    tx.execute(
        "-- inbox.group_expire_members
        delete from agent_group_member
        where agent_id = $1 and name = $2 and lease_until <= clock_timestamp()",
        &[&member.agent, &member.group],
    )
    .await?;
    let renewed = tx
        .execute(
            "-- inbox.group_renew
            update agent_group_member set lease_until = clock_timestamp() + make_interval(secs => $2)
            where connection_id = $1 and is_live and $3 = (select inbox_epoch())
                and exists (select from live_agent_token where token_id = $4)",
            &[
                &member.connection,
                &GROUP_LEASE.as_secs_f64(),
                &super::store::to_column(member.epoch),
                &member.token,
            ],
        )
        .await?;
    Ok(renewed == 1)
}

/// Finishes everything that the socket was given up to each of these events, in the order in which
/// it was given. A number that it was not given says nothing.
async fn ack(tx: &Tx, member: &Member, acks: &[i64]) -> Result<()> {
    if acks.is_empty() {
        return Ok(());
    }
    tx.execute(
        "-- inbox.group_ack
        with up_to as (
            select max(place) as place from agent_group_given where connection_id = $1 and seq = any($4)
        ), acked as (
            delete from agent_group_given g using up_to
            where g.connection_id = $1 and g.place <= up_to.place
            returning g.seq
        )
        update agent_group set done = done + (select range_agg(int8range(seq, seq, '[]')) from acked)
        where agent_id = $2 and name = $3 and exists (select from acked)",
        &[&member.connection, &member.agent, &member.group, &acks],
    )
    .await?;
    Ok(())
}

/// Moves the durable ack over what is finished or gone, and gives events to the socket. Returns the
/// head of the inbox and the live sockets of the group.
async fn choose(tx: &Tx, member: &Member) -> Result<(i64, Vec<ConnectionId>)> {
    let row = tx
        .query_one(
            "-- inbox.group_advance
            with bounds as (
                select i.head_seq,
                       coalesce((select seq - events from inbox_entry e where e.principal_id = $1 order by seq limit 1),
                           i.head_seq) as gone_seq
                from inbox i where i.principal_id = $1
            ), base as (
                select b.head_seq, greatest(g.acked_seq, b.gone_seq) as seq, g.done
                from agent_group g cross join bounds b where g.agent_id = $1 and g.name = $2
            ), reached as (
                select head_seq, done,
                       coalesce((select upper(r) - 1 from unnest(done) r where r @> base.seq + 1), seq) as seq
                from base
            ), moved as (
                update agent_group g set acked_seq = reached.seq, used_at = app_now(),
                    done = reached.done - int8multirange(int8range(null, reached.seq, '[]'))
                from reached where g.agent_id = $1 and g.name = $2
                    and (g.acked_seq < reached.seq or g.used_at < app_now() - interval '1 hour')
            )
            select head_seq, seq,
                   (select count(*) from agent_group_given where connection_id = $3) as given,
                   array(select connection_id from agent_group_member
                         where agent_id = $1 and name = $2 and is_live) as owners
            from reached",
            &[&member.agent, &member.group, &member.connection],
        )
        .await?;
    let (head, acked, given): (i64, i64, i64) =
        (row.get("head_seq"), row.get("seq"), row.get("given"));
    let owners: Vec<ConnectionId> = row.get("owners");
    let room = (MAX_GIVEN_EVENTS - given).min(MAX_PAGE_EVENTS);
    let room = usize::try_from(room).unwrap_or(0);
    if room == 0 || head <= acked {
        return Ok((head, owners));
    }
    let open = open_events(tx, member, acked).await?;
    let held = held_elsewhere(tx, member).await?;
    let mine = open.into_iter().filter(|(_, conversation)| {
        owner(*conversation, &owners) == Some(member.connection) && !held.contains(conversation)
    });
    let (seqs, conversations): (Vec<i64>, Vec<ConversationId>) = mine.take(room).unzip();
    if !seqs.is_empty() {
        tx.execute(
            "-- inbox.group_give
            insert into agent_group_given (agent_id, name, seq, conversation_id, connection_id)
            select $1, $2, seq, conversation_id, $3
            from unnest($4::bigint[], $5::uuid[]) as chosen (seq, conversation_id) order by seq",
            &[
                &member.agent,
                &member.group,
                &member.connection,
                &seqs,
                &conversations,
            ],
        )
        .await?;
    }
    Ok((head, owners))
}

/// Events that the socket was given after `place`, in order, and the last place.
async fn unsent(tx: &Tx, member: &Member, place: i64) -> Result<(Vec<i64>, Option<i64>)> {
    let rows = tx
        .query(
            "-- inbox.group_unsent
            select seq, place from agent_group_given where connection_id = $1 and place > $2 order by place",
            &[&member.connection, &place],
        )
        .await?;
    let given = rows.iter().map(|row| row.get("seq")).collect();
    Ok((given, rows.last().map(|row| row.get("place"))))
}

/// The events behind the ack that are neither finished nor given, in order, each with its
/// conversation. An event without one has the agent's id in its place.
async fn open_events(tx: &Tx, member: &Member, acked: i64) -> Result<Vec<(i64, ConversationId)>> {
    let rows = tx
        .query(
            "-- inbox.group_open
            select e.seq, coalesce(e.conversation_id, v.conversation_id, $1) as conversation_id
            from (
                select part.seq - part.events + n as seq, part.event_ids[n] as event_id,
                       coalesce(part.conversation_id, part.conversation_ids[n]) as conversation_id
                from (
                    select * from inbox_entry where principal_id = $1 and seq > $3 order by seq limit $4
                ) part cross join generate_series(1, part.events) n
                where part.seq - part.events + n > $3
            ) e
            left join lateral (select conversation_id from event where event_id = e.event_id limit 1) v on true
            where e.seq <= $3 + $4
                and not exists (select from agent_group g where g.agent_id = $1 and g.name = $2 and g.done @> e.seq)
                and not exists (select from agent_group_given g
                    where g.agent_id = $1 and g.name = $2 and g.seq = e.seq)
            order by e.seq",
            &[
                &member.agent,
                &member.group,
                &acked,
                &MAX_GROUP_WINDOW_EVENTS,
            ],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| (row.get("seq"), row.get("conversation_id")))
        .collect())
}

/// The conversations of which another socket has events that it has not acked.
async fn held_elsewhere(tx: &Tx, member: &Member) -> Result<HashSet<ConversationId>> {
    let rows = tx
        .query(
            "-- inbox.group_held
            select distinct conversation_id from agent_group_given
            where agent_id = $1 and name = $2 and connection_id <> $3",
            &[&member.agent, &member.group, &member.connection],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("conversation_id")).collect())
}

/// The shared sockets of these agents.
pub async fn members(client: &Conn, agents: &[AgentId]) -> Result<Vec<ShownMember>> {
    let rows = client
        .query(
            "-- inbox.group_members
            select m.connection_id, m.name, i.head_seq - g.acked_seq as lag,
                   (select count(distinct conversation_id) from agent_group_given o
                    where o.connection_id = m.connection_id and o.conversation_id <> o.agent_id) as conversations
            from agent_group_member m join agent_group g using (agent_id, name)
            join inbox i on i.principal_id = m.agent_id
            where m.agent_id = any($1) and m.is_live and m.lease_until > clock_timestamp()",
            &[&agents],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| ShownMember {
            connection: row.get("connection_id"),
            group: row.get("name"),
            conversations: row.get("conversations"),
            lag: row.get("lag"),
        })
        .collect())
}

/// Deletes groups without a connection for seven days.
pub async fn expire(db: &Db) -> Result<()> {
    let client = db.write().await?;
    client
        .execute(
            "-- inbox.expire_groups
            delete from agent_group g
            where g.used_at < app_now() - make_interval(days => $1)
                and not exists (select from agent_group_member m where m.agent_id = g.agent_id and m.name = g.name
                    and m.lease_until > clock_timestamp())",
            &[&AGENT_GROUP_RETENTION_DAYS],
        )
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_takes_conversations_and_moves_no_other() {
        let id = |n: u128| ConnectionId::from_bytes(n.to_be_bytes());
        let (before, after) = ([id(1), id(2), id(3)], [id(1), id(2), id(3), id(4)]);
        let mut taken = 0;
        for conversation in 100..1_100_u128 {
            let conversation = ConversationId::from_bytes(conversation.to_be_bytes());
            let (old, new) = (owner(conversation, &before), owner(conversation, &after));
            if new == Some(id(4)) {
                taken += 1;
            } else {
                assert_eq!(old, new);
            }
        }
        assert!((150..350).contains(&taken), "{taken} of 1,000");
    }
}
