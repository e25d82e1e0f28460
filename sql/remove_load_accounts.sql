-- Removes a deleted account of a load test, with all its rows, as the owner of the schema. `blindpipe loadtest-accounts
-- --remove` runs it for each account after the service's own erasure. Serving roles may not delete these rows.
--
-- An account that shares anything with others stays, as every deleted account does, and loses its mark. The access log
-- and the reconcile log stay: nobody may change the first, and the second lives for minutes.
create function pg_temp.remove_load_account(gone uuid) returns boolean language plpgsql as $$
declare
    agents constant uuid[] := array(select agent_id from agent where owner_user_id = gone);
    everyone constant uuid[] := agents || gone;
    rooms constant uuid[] := array(
        select conversation_id from conversation where pair_low = any(everyone) and pair_high = any(everyone)
        union all
        select conversation_id from conversation c
        where kind = 'group' and title = 'Load test' and created_by = gone
            and not exists (select from member m where m.conversation_id = c.conversation_id));
    events constant uuid[] := array(select distinct unnest(event_ids) from inbox_entry where principal_id = any(everyone));
begin
    if not exists (select from user_account where user_id = gone and email like 'deleted:%@loadtest.invalid') then
        return false;
    end if;
    delete from idempotency i using message m
        where m.conversation_id = any(rooms) and i.key = m.client_message_id and i.sender_id = m.sender_id;
    delete from message_deletion d using message m where m.conversation_id = any(rooms) and d.message_id = m.message_id;
    delete from message_token where conversation_id = any(rooms);
    delete from message_ref where conversation_id = any(rooms);
    delete from message where conversation_id = any(rooms);
    -- The other events of these inboxes are about groups of others, who may still read them.
    delete from event where event_id = any(events)
        and (conversation_id is null or conversation_id = any(rooms));
    delete from inbox_entry where principal_id = any(everyone);
    delete from inbox_reader where principal_id = any(everyone);
    delete from inbox where principal_id = any(everyone);
    delete from member where conversation_id = any(rooms);
    delete from conversation where conversation_id = any(rooms);
    -- A relation with another's agent keeps the account.
    delete from relation where user_id = gone and agent_id = any(agents);
    delete from agent_token where agent_id = any(agents);
    delete from public_key where principal_id = any(everyone);
    delete from agent where agent_id = any(agents);
    delete from session where user_id = gone;
    delete from device where user_id = gone;
    delete from login_notice where user_id = gone;
    delete from security_notice where user_id = gone;
    delete from key_backup_erasure where user_id = gone;
    delete from user_account where user_id = gone;
    return true;
exception when foreign_key_violation then
    update user_account set email = 'deleted:' || user_id where user_id = gone;
    return false;
end $$;
