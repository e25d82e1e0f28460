-- The bytes that each account has in use, with those of its agents: its open uploads as they were declared, and its
-- files that have their bytes. Triggers of `upload` keep the sums in the transaction of every change, so neither a
-- crash nor a statement leaves a charge behind.
-- No foreign key: a charge would wait for whoever changes the account.
create table account_storage (
    user_id    uuid   primary key,
    used_bytes bigint not null
);

-- The bytes that an upload is charged with.
create function charged_bytes(state text, object_key text, size bigint) returns bigint language sql immutable as $$
    select case when state in ('pending', 'uploaded') or (state = 'confirmed' and object_key is not null) then size else 0 end
$$;

-- Adds to the sums of the uploaders' accounts, in the order of the accounts. It runs as the owner: no node changes a sum
-- itself.
create function charge_accounts(uploader_ids uuid[], bytes bigint[]) returns void language sql
security definer set search_path = public, pg_temp as $$
    insert into account_storage as s (user_id, used_bytes)
    select coalesce(a.owner_user_id, c.uploader_id), sum(c.bytes)
    from unnest(uploader_ids, bytes) as c (uploader_id, bytes) left join agent a on a.agent_id = c.uploader_id
    group by 1 having sum(c.bytes) <> 0 order by 1
    on conflict (user_id) do update set used_bytes = s.used_bytes + excluded.used_bytes
$$;
revoke execute on function charge_accounts(uuid[], bigint[]) from public;

create function charge_uploads() returns trigger language plpgsql
security definer set search_path = public, pg_temp as $$
begin
    if tg_op = 'INSERT' then
        perform charge_accounts(array_agg(uploader_id), array_agg(charged_bytes(state, object_key, size))) from after_rows;
    elsif tg_op = 'DELETE' then
        perform charge_accounts(array_agg(uploader_id), array_agg(-charged_bytes(state, object_key, size))) from before_rows;
    else
        perform charge_accounts(array_agg(uploader_id), array_agg(bytes)) from (
            select uploader_id, charged_bytes(state, object_key, size) as bytes from after_rows
            union all
            select uploader_id, -charged_bytes(state, object_key, size) from before_rows
        ) as changes;
    end if;
    return null;
end $$;
create trigger upload_charged_new after insert on upload referencing new table as after_rows
    for each statement execute function charge_uploads();
create trigger upload_charged_change after update on upload referencing old table as before_rows new table as after_rows
    for each statement execute function charge_uploads();
create trigger upload_charged_end after delete on upload referencing old table as before_rows
    for each statement execute function charge_uploads();

-- The triggers hold the writers of uploads up until these sums are there.
insert into account_storage (user_id, used_bytes)
select coalesce(a.owner_user_id, u.uploader_id), sum(charged_bytes(u.state, u.object_key, u.size))
from upload u left join agent a on a.agent_id = u.uploader_id
group by 1 having sum(charged_bytes(u.state, u.object_key, u.size)) <> 0;
