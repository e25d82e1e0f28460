//! The statement that stores a batch: judge, number, store, deliver, in one round trip.
//!
//! Inputs: one array per column, one element per send, in the order of the batch ([`Columns`]).
//! Items are numbers into these arrays (`n`, from 1), so rows stay narrow. `$10` is the highest
//! `hop`.
//!
//! - `judged`: each item with its verdict, null for one that may be stored. With it go the
//!   `rules_version` of its conversation, and the last number that an agent's `hop` follows from.
//! - `bumped`: numbers for the good items of each conversation, if its rules are still those that
//!   were read. Other sends meanwhile do not matter, except to an agent's `hop`.
//! - `keyed`, `stored`: keys and messages.
//! - `heads`, `entries`: the inbox of each member, its head and what it got. A run of messages of
//!   one conversation is stored as its last number, others as arrays.
//!
//! Outputs: rows whose `kind` says what they are.
//!
//! - `stored`, for an item: `n`, `seq`, `created_at`, `hop`, `device_id`.
//! - a verdict, for an item that was not stored: `n`.
//! - `user` or `agent`, for each inbox: `principal_id` of its owner, its head as `seq`, and the
//!   items as `ns`, of which the last has that number. `has_webhook` says of an agent whether
//!   webhooks deliver from there. A send to any other costs no second transaction.
//!
//! Credentials are read in the statement's snapshot, before it waits for locks. A statement that
//! took more than 10 ms reads them again at its end and fails if one has ended meanwhile.
//!
//! An item without a row is in a conversation whose rules changed between the snapshot and its
//! lock. The writer tries it again. Two sets of arrays instead of these rows cost Postgres a fifth
//! more for eight messages into a group of 500. They save nothing where inboxes are few.
//!
//! Locks: the updates are the locks, conversations first, then keys, then inboxes, each in order.
//! Nested loops keep that order ([`Plans::Pinned`]). A change of members, roles, relations or
//! encryption raises `rules_version`, so an unchanged one proves the members too. Heads of inboxes
//! are read as they are locked and cannot be stale.
//!
//! Cost: the statement looks tables up by their keys, and never joins its own results with each
//! other. So the cost per message does not grow with the batch. A used key gets a verdict of its
//! own. [`priors`](super) looks up its message separately, because replays are rare. A key that a
//! concurrent transaction uses for another conversation fails the statement.
//!
//! [`Plans::Pinned`]: crate::db::Plans::Pinned

use std::sync::LazyLock;

use blindpipe_protocol::search::SearchToken;
use tokio_postgres::{Row, types::ToSql};
use uuid::Uuid;

use super::{Decision, Refusal, StoredMessage};
use crate::{
    features::messages::{Draft, batch::PendingSend},
    ids::{
        ConversationId, Credential, MessageId, Principal, PrincipalId, PrincipalKind, SessionId,
        TokenId,
    },
    inbox::Delivery,
    limits::quotas::MAX_HOPS,
    planted::PlantedBug,
};

/// Takes the locks of a batch's conversations before [`SEND`] begins. The snapshot of [`SEND`] then
/// holds everything that was committed before the locks.
pub const LOCK: &str = "-- messages.lock
select 1 from conversation where conversation_id = any($1) order by conversation_id for no key update";

/// The conversations of a batch that another transaction holds up now, each with a locked inbox if
/// it is one of its members'. It takes no lock: a row's `xmax` is the transaction that locked it
/// last, and the snapshot tells whether that one is still under way. Several that share a lock do not
/// show.
pub const LOCKS: &str = "-- messages.locks
with running as materialized (
    select array(select (xip::text::int8 & 4294967295)::text::xid from pg_snapshot_xip(pg_current_snapshot()) xip) as xids
), place as materialized (
    select conversation_id, xmax = any((select xids from running)::xid[]) as is_locked
    from conversation where conversation_id = any($1)
)
select conversation_id, null::uuid as principal_id from place where is_locked
union all
select m.conversation_id, i.principal_id
from place join member m on m.conversation_id = place.conversation_id join inbox i on i.principal_id = m.principal_id
where i.xmax = any((select xids from running)::xid[])";

/// The statement of this module.
const SEND: &str = "-- messages.send
with item as (
    select n::int4 as n, ($2::uuid[])[n] as conversation_id, ($3::uuid[])[n] as sender_id, ($4::uuid[])[n] as session_id,
        ($5::uuid[])[n] as token_id, ($6::bool[])[n] as encrypted, ($7::uuid[])[n] as key,
        ($8::uuid[])[n] as in_reply_to, ($9::text[])[n]::uuid[] as named, ($14::text[])[n]::uuid[] as refs
    from unnest($1::uuid[]) with ordinality as one (message_id, n)
), judged as materialized (
    select item.n, item.conversation_id, c.rules_version, s.device_id, h.hop::int2 as hop,
        case when item.session_id is null and item.in_reply_to is null then c.last_seq end as follows,
        case
            when not coalesce(
                s.user_id = item.sender_id and s.revoked_at is null and s.absolute_expires_at > app_now(),
                (select t.agent_id = item.sender_id and t.revoked_at is null
                     and (t.valid_until is null or t.valid_until > app_now())
                 from agent_token t where t.token_id = item.token_id),
                false) then 'credential'
            when m.principal_id is null then 'not_member'
            when m.relation_id is not null
                and (select r.state from relation r where r.relation_id = m.relation_id) = 'revoked' then 'relation_revoked'
            when c.encryption = 'required' and not item.encrypted then 'plaintext'
            when item.in_reply_to is not null and answered.seq is null then 'unknown_reference'
            when h.hop > $10 then 'too_many_hops'
            when item.refs is not null and cardinality(item.refs) > (
                select count(*) from message x
                where x.conversation_id = item.conversation_id and x.message_id = any(item.refs)) then 'unknown_ref'
            when item.named is not null and not item.named <@ array(
                select x.principal_id from member x where x.conversation_id = item.conversation_id) then 'unknown_recipient'
            when (select k.seq from idempotency k where k.key = item.key and k.sender_id = item.sender_id)
                is not null then 'key_taken'
        end as verdict
    from item
    left join session s on s.session_id = item.session_id
    left join conversation c on c.conversation_id = item.conversation_id
    left join member m on m.conversation_id = item.conversation_id and m.principal_id = item.sender_id
    left join message answered
        on answered.conversation_id = item.conversation_id and answered.message_id = item.in_reply_to
    cross join lateral (
        select case
            when item.session_id is not null then 0
            when item.in_reply_to is not null then
                case when answered.sender_kind = 'user' then 1
                     when answered.sender_id = item.sender_id then answered.hop
                     else answered.hop + 1 end
            when c.last_sender_kind = 'agent' and c.last_sender_id = item.sender_id then c.last_hop
            when c.last_sender_kind = 'agent' then c.last_hop + 1
            else 1
        end as hop
    ) h
), bumped as (
    update conversation c set last_seq = c.last_seq + cardinality(d.ns), last_message_id = $1[d.last],
        last_sender_id = $3[d.last], last_sender_kind = case when $4[d.last] is null then 'agent' else 'user' end,
        last_hop = d.hops[cardinality(d.ns)], last_activity_at = app_now()
    from (
        select conversation_id, min(rules_version) as rules_version, max(follows) as follows, max(n) as last,
            array_agg(n) as ns, array_agg(hop) as hops, array_agg(device_id) as devices, array_agg($3[n]) as senders
        from (select * from judged where verdict is null order by conversation_id, n) each
        group by conversation_id order by conversation_id
    ) d
    where c.conversation_id = d.conversation_id and c.rules_version = d.rules_version
        and (d.follows is null or c.last_seq = d.follows)
    returning c.conversation_id, d.ns, d.hops, d.devices, d.senders,
        array(select generate_series(c.last_seq - cardinality(d.ns) + 1, c.last_seq)) as seqs
), good as materialized (
    select conversation_id, seq, n, hop, device_id
    from bumped cross join unnest(seqs, ns, hops, devices) as one (seq, n, hop, device_id)
), keyed as (
    insert into idempotency (key, sender_id, conversation_id, seq)
    select $7[n], $3[n], conversation_id, seq from good where $7[n] is not null order by 2, 1
    returning 1
), stored as (
    insert into message (conversation_id, seq, message_id, sender_id, sender_kind, sender_device, client_message_id,
                         in_reply_to, hop, created_at, payload, recipients, refs)
    select conversation_id, seq, $1[n], $3[n], case when $4[n] is null then 'agent' else 'user' end, device_id,
           ($11::uuid[])[n], $8[n], hop, app_now(), ($12::text[])[n], ($13::text[])[n]::text[],
           ($14::text[])[n]::uuid[]
    from good
), heads as (
    update inbox i set head_seq = i.head_seq + cardinality(h.ns)
    from (
        select principal_id, min(principal_kind) as kind, array_concat(ns) as ns, array_concat(seqs) as seqs,
            count(*) = 1 as is_of_one
        from (
            select m.principal_id, m.principal_kind,
                case when few.is_all then b.ns else array(
                    select n from unnest(b.ns) n
                    where (m.principal_kind = 'user' or m.principal_id <> $3[n])
                        and (m.visibility = 'all' or m.principal_id = any($9[n]::uuid[]))) end as ns,
                case when few.is_all then b.seqs else array(
                    select seq from unnest(b.ns, b.seqs) as one (n, seq)
                    where (m.principal_kind = 'user' or m.principal_id <> $3[n])
                        and (m.visibility = 'all' or m.principal_id = any($9[n]::uuid[]))) end as seqs
            from bumped b join member m on m.conversation_id = b.conversation_id
            cross join lateral (
                select m.visibility = 'all' and (m.principal_kind = 'user' or m.principal_id <> all(b.senders)) as is_all
            ) few
            where m.relation_id is null or (select r.state from relation r where r.relation_id = m.relation_id) <> 'revoked'
            order by m.principal_id, b.conversation_id
        ) each
        where (select count(*) from keyed) is not null -- the keys first
        group by principal_id order by principal_id
    ) h
    where i.principal_id = h.principal_id and cardinality(h.ns) > 0
    returning i.principal_id, h.kind, i.head_seq, cardinality(h.ns) as events, h.ns, h.seqs,
        h.is_of_one and h.seqs[cardinality(h.seqs)] - h.seqs[1] = cardinality(h.seqs) - 1 as is_run
), entries as (
    insert into inbox_entry (principal_id, seq, events, conversation_id, message_seq, conversation_ids, message_seqs)
    select principal_id, head_seq, events,
        case when is_run then $2[ns[1]] end, case when is_run then seqs[events] end,
        case when not is_run then array(select $2[n] from unnest(ns) n) end, case when not is_run then seqs end
    from heads
)
select 'stored' as kind, n, seq, app_now() as created_at, hop, device_id, null::uuid as principal_id, null::int4[] as ns,
    null::bool as has_webhook
from good
union all
select verdict, n, null, null, null, null, null, null, null from judged where verdict is not null
union all
select kind, null, head_seq, null, null, null, principal_id, ns, case when kind = 'agent' then exists (
    select from webhook_turn t where t.agent_id = principal_id and t.is_open) end
from heads
union all -- after the locks: this one has no row, and fails for a credential that has ended meanwhile
select 'ended', null, null, null, null, null, null, null, null
where case when clock_timestamp() > statement_timestamp() + interval '10 milliseconds' then
    not require_live(array(select ($4::uuid[])[n] from good), array(select ($5::uuid[])[n] from good)) end";

/// The part of [`SEND`] that reads the messages which a batch answers.
const ANSWERED: &str = "left join message answered
        on answered.conversation_id = item.conversation_id and answered.message_id = item.in_reply_to";
/// Stands in for [`ANSWERED`] where a batch answers none.
const NONE_ANSWERED: &str = "cross join (
        select null::text as sender_kind, null::uuid as sender_id, null::int2 as hop, null::int8 as seq) answered";

/// The part of [`SEND`] that looks for the messages to which a batch refers.
const REFERRED: &str = "when item.refs is not null and cardinality(item.refs) > (
                select count(*) from message x
                where x.conversation_id = item.conversation_id and x.message_id = any(item.refs)) then 'unknown_ref'";

/// [`SEND`] for a batch that neither answers messages nor refers to any. A plan begins with every
/// partition of `message` that it may read, and that takes Postgres a fifth of its time for a lone
/// send.
static SEND_ALONE: LazyLock<String> = LazyLock::new(|| {
    SEND.replacen(ANSWERED, NONE_ANSWERED, 1)
        .replacen(REFERRED, "", 1)
});

/// The statement's inputs: one array per column.
pub struct Columns<'a> {
    ids: Vec<MessageId>,
    conversations: Vec<ConversationId>,
    senders: Vec<PrincipalId>,
    /// The sessions of users; `tokens` has the credentials of agents.
    sessions: Vec<Option<SessionId>>,
    tokens: Vec<Option<TokenId>>,
    encrypted: Vec<bool>,
    keys: Vec<Option<Uuid>>,
    references: Vec<Option<MessageId>>,
    /// Recipients, each list as a Postgres array literal: their ids here, the wire's names below.
    named: Vec<Option<String>>,
    client_ids: Vec<Option<MessageId>>,
    payloads: Vec<&'a str>,
    recipients: Vec<Option<String>>,
    /// The messages to which each send refers, as a Postgres array literal; nearly always none.
    refs: Vec<Option<String>>,
    /// The search tokens of each send; nearly always none.
    search_tokens: Vec<&'a [SearchToken]>,
}

/// Search tokens and their messages: arrays of one length.
pub struct Tokens<'a> {
    pub conversations: Vec<ConversationId>,
    pub messages: Vec<MessageId>,
    pub tokens: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    /// The columns of `batch`, in its order.
    pub fn of(batch: &'a [PendingSend]) -> Self {
        let each = || batch.iter().map(|send| &send.request);
        Columns {
            ids: batch.iter().map(|send| send.id).collect(),
            conversations: each().map(|request| request.conversation).collect(),
            senders: each().map(|request| request.sender.id()).collect(),
            sessions: each()
                .map(|request| match request.credential {
                    Credential::Session(session) => Some(session),
                    Credential::Token(_) => None,
                })
                .collect(),
            tokens: each()
                .map(|request| match request.credential {
                    Credential::Token(token) => Some(token),
                    Credential::Session(_) => None,
                })
                .collect(),
            encrypted: each().map(|request| request.draft.encrypted).collect(),
            keys: each()
                .map(|request| request.draft.key)
                .map(|key| key.filter(|_| !PlantedBug::NoIdempotency.is_planted()))
                .collect(),
            references: each().map(|request| request.draft.in_reply_to).collect(),
            named: each()
                .map(|request| array(&request.draft, |who| who.id().0.to_string()))
                .collect(),
            client_ids: each()
                .map(|request| request.draft.client_message_id)
                .collect(),
            payloads: each()
                .map(|request| request.draft.payload.as_str())
                .collect(),
            recipients: each()
                .map(|request| array(&request.draft, Principal::wire_id))
                .collect(),
            refs: each()
                .map(|request| {
                    let refs = request.draft.refs.as_ref()?;
                    Some(array_of(refs.iter().map(|id| id.0)))
                })
                .collect(),
            search_tokens: each()
                .map(|request| request.draft.search_tokens.as_slice())
                .collect(),
        }
    }

    /// The text of the statement for these inputs.
    pub fn statement(&self) -> &'static str {
        let is_alone =
            self.references.iter().all(Option::is_none) && self.refs.iter().all(Option::is_none);
        if is_alone { &SEND_ALONE } else { SEND }
    }

    /// Whether a send has rows by which it is found: search tokens or references.
    pub fn are_findable(&self) -> bool {
        self.refs.iter().any(Option::is_some)
            || self.search_tokens.iter().any(|tokens| !tokens.is_empty())
    }

    /// The conversations and ids of the sends that refer to messages; none if no send does.
    pub fn referring(&self) -> Option<(Vec<ConversationId>, Vec<MessageId>)> {
        let sends = self.conversations.iter().zip(&self.ids).zip(&self.refs);
        let referring = sends
            .filter_map(|((conversation, id), refs)| refs.as_ref().map(|_| (*conversation, *id)));
        let (conversations, ids): (Vec<_>, Vec<_>) = referring.unzip();
        (!ids.is_empty()).then_some((conversations, ids))
    }

    /// The search tokens; none if no send has any.
    pub fn tokens(&self) -> Option<Tokens<'a>> {
        let sends = self.conversations.iter().zip(&self.ids);
        let all = sends.zip(&self.search_tokens).flat_map(|(send, tokens)| {
            let each = tokens.iter().map(|token| token.as_str());
            each.map(move |token| (*send.0, *send.1, token))
        });
        let (conversations, messages, tokens): (Vec<_>, Vec<_>, Vec<_>) = all.collect();
        (!messages.is_empty()).then_some(Tokens {
            conversations,
            messages,
            tokens,
        })
    }

    /// The parameters `$1` to `$14`.
    pub fn params(&self) -> [&(dyn ToSql + Sync); 14] {
        [
            &self.ids,
            &self.conversations,
            &self.senders,
            &self.sessions,
            &self.tokens,
            &self.encrypted,
            &self.keys,
            &self.references,
            &self.named,
            &const { MAX_HOPS as i32 },
            &self.client_ids,
            &self.payloads,
            &self.recipients,
            &self.refs,
        ]
    }
}

fn array(draft: &Draft, show: impl Fn(Principal) -> String) -> Option<String> {
    let recipients = draft.recipients.as_ref()?;
    Some(array_of(recipients.iter().copied().map(show)))
}

/// A Postgres array literal of ids.
fn array_of(ids: impl Iterator<Item = impl ToString>) -> String {
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    format!("{{{}}}", ids.join(","))
}

/// Reads the statement's rows: a decision for each send of `batch`.
pub fn decode(batch: &[PendingSend], rows: &[Row]) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = batch.iter().map(|_| Decision::Undecided).collect();
    let owner = |row: &Row| row.get::<_, &str>("kind").parse::<PrincipalKind>().ok();
    let is_inbox = |row: &&Row| owner(row).is_some();
    let (inboxes, items): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(is_inbox);
    for row in items {
        if let Some(decision) = position(row.get("n")).and_then(|n| decisions.get_mut(n)) {
            *decision = decode_item(row);
        }
    }
    for row in inboxes {
        let recipient = Principal::from_row(row.get("kind"), row.get("principal_id"));
        let head: i64 = row.get("seq");
        let items: Vec<i32> = row.get("ns");
        let has_webhook = row.get::<_, Option<bool>>("has_webhook") == Some(true);
        for (seq, n) in (0..=head).rev().zip(items.into_iter().rev()) {
            if let Some(Decision::Stored(stored)) = position(n).and_then(|n| decisions.get_mut(n)) {
                stored.deliveries.push(Delivery {
                    recipient,
                    seq,
                    has_webhook,
                });
            }
        }
    }
    decisions
}

/// The place of an item in its batch. Postgres counts from 1.
pub fn position(n: i32) -> Option<usize> {
    usize::try_from(n - 1).ok()
}

fn decode_item(row: &Row) -> Decision {
    Decision::Refused(match row.get("kind") {
        "stored" => {
            return Decision::Stored(StoredMessage {
                seq: row.get("seq"),
                created_at: row.get("created_at"),
                hop: row.get("hop"),
                device_id: row.get("device_id"),
                deliveries: Vec::new(),
            });
        }
        "credential" => Refusal::Credential,
        "not_member" => Refusal::NotMember,
        "relation_revoked" => Refusal::RelationRevoked,
        "plaintext" => Refusal::Plaintext,
        "unknown_reference" => Refusal::UnknownReference,
        "unknown_ref" => Refusal::UnknownRef,
        "too_many_hops" => Refusal::TooManyHops,
        "unknown_recipient" => Refusal::UnknownRecipient,
        // `key_taken`: the key leads to the earlier send, or has expired meanwhile.
        _ => return Decision::Undecided,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_stands_alone_reads_no_message() {
        assert!(SEND.contains(ANSWERED) && SEND.contains(REFERRED));
        assert!(!SEND_ALONE.contains("join message ") && !SEND_ALONE.contains("from message "));
        assert!(SEND_ALONE.contains(NONE_ANSWERED));
    }
}
