-- A send reads its credential before it waits for the rows that others have locked. This function reads it again. It
-- is volatile, so it sees what was committed during the wait. The caller repeats a send that fails here, and then
-- refuses it.
create function require_live(session_ids uuid[], token_ids uuid[]) returns boolean language plpgsql volatile as $$
begin
    if exists (
        select from unnest(session_ids) as c (id)
        where c.id is not null and not exists (select from live_session s where s.session_id = c.id)
    ) or exists (
        select from unnest(token_ids) as c (id)
        where c.id is not null and not exists (select from live_agent_token t where t.token_id = c.id)
    ) then
        raise exception 'a credential has ended meanwhile' using errcode = 'serialization_failure';
    end if;
    return true;
end
$$;
