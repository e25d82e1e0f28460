-- What every node must learn although no hint is sure to reach it. Nodes read this log from a position (ADR 66).
create table reconcile_log (
    log_id       bigint      generated always as identity primary key,
    log_position bigint      not null,                                    -- `log_position()` of its transaction
    -- A session or token that was revoked; or an inbox whose hint its node could not publish; or neither: some inbox.
    credential_id uuid,
    principal_id  uuid,
    recorded_at   timestamptz not null default app_now()
);
create index reconcile_log_by_position on reconcile_log (log_position);
create index reconcile_log_age on reconcile_log (recorded_at);

-- The position of what this transaction writes. Transactions commit in another order than their positions, so a reader
-- keeps a cursor. An engine without transaction ids may take numbers under a row lock: they commit in their order.
create function log_position() returns bigint language sql as $$
    select pg_current_xact_id()::text::bigint
$$;
alter table reconcile_log alter log_position set default log_position();

-- What a statement sees of the log: everything below the first number but for the positions behind it, which were not
-- committed yet. In an engine whose positions commit in their order it is the next position alone.
create function log_cursor() returns bigint[] language sql stable as $$
    select pg_snapshot_xmax(s)::text::bigint || array(select x::text::bigint from pg_snapshot_xip(s) x)
    from pg_current_snapshot() s
$$;

-- Every path that revokes is recorded, statements by hand too. The serving role may not write such rows otherwise.
create function record_revocation() returns trigger language plpgsql security definer set search_path = public as $$
declare
    credential uuid;
begin
    if tg_table_name = 'session' then credential := new.session_id; else credential := new.token_id; end if;
    insert into reconcile_log (credential_id) values (credential);
    return null;
end
$$;
revoke execute on function record_revocation() from public;
create trigger session_revocation after update of revoked_at on session
    for each row when (old.revoked_at is null and new.revoked_at is not null) execute function record_revocation();
create trigger agent_token_revocation after update of revoked_at on agent_token
    for each row when (old.revoked_at is null and new.revoked_at is not null) execute function record_revocation();
