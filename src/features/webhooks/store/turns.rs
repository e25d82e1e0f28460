use std::collections::HashMap;

use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use crate::{
    db::Db,
    error::Result,
    ids::{AgentId, CredentialId, TokenId},
    telemetry::trace::TraceContext,
    work::Tx,
};

/// Most bytes of the traces that wait for an agent's turn. Further ones replace them.
const MAX_TRACES_BYTES: i32 = 8 * 1024;

/// The time for which a turn is valid without a renewal. A dead worker's turns are due again then.
pub const LEASE_SECONDS: f64 = 30.0;

/// Ends deliveries: a worker that has the turn loses it. Makes the row if there is none.
pub async fn close(tx: &Tx, agent: AgentId) -> Result<()> {
    tx.execute(
        "-- webhooks.close_turn
        insert into webhook_turn as t (agent_id) values ($1)
        on conflict (agent_id) do update set is_open = false, due_at = null, is_leased = false, is_parked = false,
            turn = t.turn + 1",
        &[&agent],
    )
    .await?;
    Ok(())
}

/// Begins deliveries at once, if the agent is reachable. The agent's row is locked already.
pub async fn open(tx: &Tx, agent: AgentId) -> Result<()> {
    tx.execute(
        "-- webhooks.open_turn
        update webhook_turn t set due_at = app_now(), is_open = true, is_leased = false, is_parked = false,
            has_open = true, not_before = null, turn = t.turn + 1
        from agent a, webhook w
        where t.agent_id = $1 and a.agent_id = $1 and a.state not in ('unreachable', 'deleted')
            and w.agent_id = $1 and w.status = 'active'",
        &[&agent],
    )
    .await?;
    super::deliveries::hasten(tx, agent).await
}

/// Makes the turn due at once for a replay, whatever it waits for.
pub async fn hasten(tx: &Tx, agent: AgentId) -> Result<()> {
    tx.execute(
        "-- webhooks.hasten_turn
        update webhook_turn set is_woken = is_leased, is_parked = false, not_before = null, has_replays = true,
            due_at = case when is_leased or not is_open then due_at else app_now() end
        where agent_id = $1",
        &[&agent],
    )
    .await?;
    Ok(())
}

/// A turn that a worker has claimed, with everything that it needs.
pub struct Claim {
    pub agent: AgentId,
    /// The number of the turn, which fences off earlier ones.
    pub turn: i32,
    /// Failed attempts since the last success.
    pub failures: i32,
    /// Finished numbers beyond the cursor, as a multirange.
    pub done: String,
    /// The agent's cursor.
    pub acked: i64,
    /// The epoch of the numbers.
    pub epoch: i64,
    /// Whether the log may have open deliveries.
    pub has_open: bool,
    /// Whether a socket was online in the turn before.
    pub was_parked: bool,
    pub traces: Traces,
    pub endpoint: EndpointRow,
}

/// The traces of events, by their numbers in the agent's inbox. Only sampled events have one.
pub type Traces = HashMap<i64, TraceContext>;

fn traces(row: &Row) -> Traces {
    let Some(text) = row.get::<_, Option<&str>>("traces") else {
        return Traces::new();
    };
    let texts: HashMap<i64, String> = serde_json::from_str(text).unwrap_or_default();
    let parsed = texts
        .into_iter()
        .map(|(seq, text)| Some((seq, text.parse().ok()?)));
    parsed.flatten().collect()
}

/// The address of a claimed turn and what signs for it.
pub struct EndpointRow {
    pub url: String,
    /// The most events of a call.
    pub max_events: i32,
    pub credential: CredentialId,
    pub sealed_secret: Option<Vec<u8>>,
    pub sealed_previous: Option<Vec<u8>>,
    pub previous_valid_until: Option<DateTime<Utc>>,
    pub updated_at: DateTime<Utc>,
    /// The token that replies are sent with; none if the agent has no valid one.
    pub token: Option<TokenId>,
}

/// The address in a row.
pub fn endpoint(row: &Row) -> EndpointRow {
    EndpointRow {
        url: row.get("url"),
        max_events: row.get("max_events"),
        credential: row.get("credential_id"),
        sealed_secret: row.get("sealed_secret"),
        sealed_previous: row.get("sealed_previous"),
        previous_valid_until: row.get("previous_valid_until"),
        updated_at: row.get("updated_at"),
        token: row.get("token_id"),
    }
}

/// Claims due turns: at most `calm` of agents whose last attempt succeeded, and `failing` others.
pub async fn claim(db: &Db, calm: i64, failing: i64) -> Result<Vec<Claim>> {
    let client = db.write().await?;
    let rows = client
        .query(
            "-- webhooks.claim
            with calm as materialized (
                select agent_id, is_leased or has_open or has_replays as has_open, is_parked, traces from webhook_turn
                where due_at <= app_now() and failures = 0 order by due_at limit $1 for update skip locked
            ), failing as materialized (
                select agent_id, is_leased or has_open or has_replays as has_open, is_parked, traces from webhook_turn
                where due_at <= app_now() and failures > 0 order by due_at limit $2 for update skip locked
            ), claimed as (
                update webhook_turn t set is_leased = true, is_woken = false, is_parked = false, has_replays = false, has_open = due.has_open,
                    turn = t.turn + 1, due_at = app_now() + make_interval(secs => $3), traces = null, epoch = now.epoch,
                    done = case when t.epoch = now.epoch then t.done else '{}' end -- numbers of another epoch name other events
                from (select * from calm union all select * from failing) due, (select inbox_epoch() as epoch) now
                where t.agent_id = due.agent_id
                returning t.agent_id, t.turn, t.epoch, t.failures, t.done::text as done, due.has_open,
                    due.is_parked as was_parked, due.traces::text as traces
            )
            select c.*, w.url, w.max_events, w.credential_id, w.sealed_secret, w.sealed_previous, w.previous_valid_until, w.updated_at,
                r.acked_seq, (
                    select token_id from live_agent_token t where t.agent_id = c.agent_id
                    order by valid_until desc limit 1) as token_id
            from claimed c join webhook w on w.agent_id = c.agent_id
            join inbox_reader r on r.principal_id = c.agent_id and r.device_id = ''",
            &[&calm, &failing, &LEASE_SECONDS],
        )
        .await?;
    let claim = |row: &Row| Claim {
        agent: row.get("agent_id"),
        turn: row.get("turn"),
        failures: row.get("failures"),
        done: row.get("done"),
        acked: row.get("acked_seq"),
        epoch: row.get("epoch"),
        has_open: row.get("has_open"),
        was_parked: row.get("was_parked"),
        traces: traces(row),
        endpoint: endpoint(row),
    };
    Ok(rows.iter().map(claim).collect())
}

/// Reads the address anew, after a change of its secret.
pub async fn reload(db: &Db, agent: AgentId) -> Result<Option<EndpointRow>> {
    let client = db.read().await?;
    let row = client
        .query_opt(
            "-- webhooks.reload
            select w.url, w.max_events, w.credential_id, w.sealed_secret, w.sealed_previous, w.previous_valid_until, w.updated_at, (
                select token_id from live_agent_token t where t.agent_id = w.agent_id
                order by valid_until desc limit 1) as token_id
            from webhook w where w.agent_id = $1",
            &[&agent],
        )
        .await?;
    Ok(row.as_ref().map(endpoint))
}

/// The agents that [`wake`] has found.
#[derive(Default)]
pub struct WokenTurns {
    /// Whether any turn is now due.
    pub any_due: bool,
    /// Agents whose turn another statement holds; its worker reads on.
    pub held: Vec<AgentId>,
}

/// Makes the turns of agents with new events due; `offline` have no socket any more. Agents
/// without an open turn are left out. Rows that are due already are not touched, so a
/// burst of events costs a write at most.
pub async fn wake(db: &Db, fresh: &[AgentId], offline: &[AgentId]) -> Result<WokenTurns> {
    let agents = [fresh, offline].concat();
    let client = db.write().await?;
    let rows = client
        .query(
            "-- webhooks.wake
            with hinted as materialized (
                select agent_id from webhook_turn
                where agent_id = any($1) and is_open and case
                    when is_leased then not is_woken
                    when due_at is null then agent_id = any($3)
                    when agent_id = any($2) then due_at > app_now()
                    else not is_parked and due_at > greatest(app_now(), not_before) end
                order by agent_id for update
            )
            update webhook_turn t set is_woken = t.is_leased, is_parked = false,
                due_at = case when t.is_leased then t.due_at else greatest(app_now(), t.not_before) end
            from hinted h where t.agent_id = h.agent_id
            returning t.agent_id, t.is_leased",
            &[&agents, &offline, &fresh],
        )
        .await?;
    let mut woken = WokenTurns::default();
    for row in rows {
        if row.get("is_leased") {
            woken.held.push(row.get("agent_id"));
        } else {
            woken.any_due = true;
        }
    }
    Ok(woken)
}

/// Notes the traces of events for the next turns of their agents: the agent, the event's number in
/// its inbox, the trace.
pub async fn note_traces(db: &Db, traced: &[(AgentId, i64, TraceContext)]) -> Result<()> {
    let agents: Vec<AgentId> = traced.iter().map(|(agent, ..)| *agent).collect();
    let seqs: Vec<i64> = traced.iter().map(|(_, seq, _)| *seq).collect();
    let traces: Vec<String> = traced.iter().map(|(.., trace)| trace.to_string()).collect();
    let client = db.write().await?;
    client
        .execute(
            "-- webhooks.note_traces
            with held as materialized (
                select agent_id from webhook_turn where agent_id = any($1) and is_open order by agent_id for update
            ), said as (
                select agent_id, jsonb_object_agg(seq::text, trace) as traces
                from unnest($1::uuid[], $2::int8[], $3::text[]) as said (agent_id, seq, trace)
                where agent_id = any(array(select agent_id from held)) group by agent_id
            )
            update webhook_turn t
            set traces = case when octet_length(t.traces::text) < $4 then t.traces || said.traces else said.traces end
            from said where t.agent_id = said.agent_id",
            &[&agents, &seqs, &traces, &MAX_TRACES_BYTES],
        )
        .await?;
    Ok(())
}

/// A held turn that still counts; the flag says whether events came.
pub async fn check(db: &Db, held: &[(AgentId, i32)]) -> Result<Vec<(AgentId, i32, bool)>> {
    let (agents, turns): (Vec<AgentId>, Vec<i32>) = held.iter().copied().unzip();
    let client = db.read().await?;
    let rows = client
        .query(
            "-- webhooks.check_turns
            select t.agent_id, t.turn, t.is_woken
            from unnest($1::uuid[], $2::int4[]) as held (agent_id, turn)
            join webhook_turn t on t.agent_id = held.agent_id and t.turn = held.turn
            where t.is_leased and t.is_open and t.epoch = (select inbox_epoch())",
            &[&agents, &turns],
        )
        .await?;
    let check = |row: &Row| (row.get("agent_id"), row.get("turn"), row.get("is_woken"));
    Ok(rows.iter().map(check).collect())
}

/// Renews the leases of held turns.
pub async fn renew(db: &Db, held: &[(AgentId, i32)]) -> Result<()> {
    let (agents, turns): (Vec<AgentId>, Vec<i32>) = held.iter().copied().unzip();
    let client = db.write().await?;
    client
        .execute(
            "-- webhooks.renew_turns
            with held as materialized (
                select t.agent_id from unnest($1::uuid[], $2::int4[]) as held (agent_id, turn)
                join webhook_turn t on t.agent_id = held.agent_id and t.turn = held.turn
                where t.is_leased order by t.agent_id for update of t
            )
            update webhook_turn t set due_at = app_now() + make_interval(secs => $3)
            from held where t.agent_id = held.agent_id",
            &[&agents, &turns, &LEASE_SECONDS],
        )
        .await?;
    Ok(())
}

/// The end of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Release {
    /// Seconds until the next turn; none if there is nothing to do.
    pub due_in: Option<f64>,
    /// A socket is online.
    pub is_parked: bool,
    /// The turn ends even if events came meanwhile.
    pub is_forced: bool,
    /// A retry waits in the log.
    pub has_open: bool,
    /// The last number that the turn has read; none if it knows of more.
    pub read_to: Option<i64>,
}

/// Ends a turn. False if events came meanwhile, or if the turn is lost.
///
/// The wake-up of an event may be lost with the node that stored it. So the inbox has the last
/// word: a turn that has not read all of it does not end.
pub async fn release(db: &Db, agent: AgentId, turn: i32, release: Release) -> Result<bool> {
    let client = db.write().await?;
    let released = client
        .execute(
            "-- webhooks.release
            update webhook_turn set is_leased = false, is_woken = false, is_parked = $4, has_open = $5,
                due_at = app_now() + make_interval(secs => $3)
            where agent_id = $1 and turn = $2 and is_leased and ($6 or not (is_woken or has_replays
                or exists (select from inbox where principal_id = $1 and head_seq > $7)))",
            &[
                &agent,
                &turn,
                &release.due_in,
                &release.is_parked,
                &release.has_open,
                &release.is_forced,
                &release.read_to,
            ],
        )
        .await?;
    Ok(released > 0)
}

/// The events that came for a turn since its claim.
pub struct News {
    /// Whether replays came.
    pub has_replays: bool,
    pub traces: Traces,
}

/// Goes on with a turn after events came. None if the turn is lost.
pub async fn go_on(db: &Db, agent: AgentId, turn: i32) -> Result<Option<News>> {
    let client = db.write().await?;
    let row = client
        .query_opt(
            "-- webhooks.go_on
            with held as materialized (
                select agent_id, has_replays, traces from webhook_turn
                where agent_id = $1 and turn = $2 and is_leased and is_open and epoch = (select inbox_epoch()) for update
            )
            update webhook_turn t set is_woken = false, has_replays = false, traces = null
            from held where t.agent_id = held.agent_id returning held.has_replays, held.traces::text as traces",
            &[&agent, &turn],
        )
        .await?;
    Ok(row.map(|row| News {
        has_replays: row.get("has_replays"),
        traces: traces(&row),
    }))
}

/// Whether the turn still counts. Locks it.
pub async fn holds(tx: &Tx, agent: AgentId, turn: i32) -> Result<bool> {
    let row = tx
        .query_opt(
            "-- webhooks.holds_turn
            select 1 from webhook_turn where agent_id = $1 and turn = $2 and is_leased for update",
            &[&agent, &turn],
        )
        .await?;
    Ok(row.is_some())
}

/// Inbox entries of a piece of the sweep: some milliseconds of Postgres.
const MAX_SWEPT_ENTRIES: i64 = 10_000;

/// The agents that a piece of the sweep has woken.
pub struct SweepResult {
    pub late: u64,
    /// Whether more entries wait.
    pub is_more: bool,
}

/// Wakes agents whose wake-up was lost: those with events since the last sweep, less ten seconds for
/// commits that were late. A piece has a bound and is committed by itself, so that after an outage
/// the sweep moves on however much there is.
pub async fn sweep(db: &Db) -> Result<SweepResult> {
    let client = db.write().await?;
    let row = client
        .query_one(
            "-- webhooks.sweep
            with piece as materialized (
                -- In this order Postgres reads the fresh entries by their age, and no others.
                select principal_id, created_at from inbox_entry
                where created_at > (select swept_until from webhook_sweep)
                order by created_at fetch first $1 rows with ties
            ), span as materialized (
                select count(*) >= $1 as is_more, max(created_at) as last from piece
            ), swept as (
                update webhook_sweep w set swept_until = case when span.is_more then span.last
                    else greatest(w.swept_until, app_now() - interval '10 seconds') end
                from span
            ), late as materialized (
                select t.agent_id from webhook_turn t
                join inbox i on i.principal_id = t.agent_id
                join inbox_reader r on r.principal_id = t.agent_id and r.device_id = ''
                where t.agent_id = any(array(select distinct principal_id from piece))
                    and t.is_open and t.due_at is null and i.head_seq > r.acked_seq
                order by t.agent_id for update of t
            ), woken as (
                update webhook_turn t set due_at = greatest(app_now(), t.not_before)
                from late where t.agent_id = late.agent_id and t.due_at is null
                returning 1
            )
            select (select count(*) from woken) as late, is_more from span",
            &[&MAX_SWEPT_ENTRIES],
        )
        .await?;
    Ok(SweepResult {
        late: row.get::<_, i64>("late").unsigned_abs(),
        is_more: row.get("is_more"),
    })
}

/// The number of due turns that no worker has, and the age of the oldest in seconds.
pub async fn backlog(db: &Db) -> Result<(i64, f64)> {
    let client = db.read().await?;
    let row = client
        .query_one(
            "-- webhooks.backlog
            select count(*) as due, coalesce(extract(epoch from app_now() - min(due_at)), 0)::float8 as age from (
                select due_at from webhook_turn where due_at <= app_now() and failures = 0
                union all
                select due_at from webhook_turn where due_at <= app_now() and failures > 0
            ) due",
            &[],
        )
        .await?;
    Ok((row.get("due"), row.get("age")))
}
