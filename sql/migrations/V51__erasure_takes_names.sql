-- What an erasure takes beside keys: the texts of agents, and the ids that people gave to their devices.

-- A deleted agent has no texts, whichever statement deletes it.
create function agent_texts_end() returns trigger language plpgsql as $$
begin
    new.display_name := 'Deleted agent';
    new.description := null;
    new.manifest := null;
    return new;
end $$;
create trigger agent_texts_end before update on agent
    for each row when (new.state = 'deleted') execute function agent_texts_end();
update agent set state = state where state = 'deleted';

-- The wraps of an erased account are found by it.
create index if not exists group_key_of_principal on group_key (principal_id);

-- As before, for 10 accounts, and the ids of their devices become random ones. What others need to verify old messages
-- stays: the public keys.
create or replace function erase_accounts() returns bigint language plpgsql
    security definer set search_path = public, pg_temp as $$
declare
    due uuid[] := array(
        select user_id from key_backup_erasure where due_at <= app_now() order by user_id limit 10 for update);
    one record;
begin
    delete from key_backup where user_id = any(due);
    delete from inbox_reader where principal_id = any(due);
    for one in
        select user_id, device_id, 'erased-' || gen_random_uuid() as erased_id from device where user_id = any(due)
    loop
        -- Sessions follow by their foreign key.
        update device set device_id = one.erased_id, renamed_from = null
        where user_id = one.user_id and device_id = one.device_id;
        update public_key set device_id = one.erased_id
        where principal_id = one.user_id and device_id = one.device_id;
        update group_key set device_id = one.erased_id
        where principal_id = one.user_id and device_id = one.device_id;
    end loop;
    delete from key_backup_erasure where user_id = any(due);
    return cardinality(due);
end $$;
