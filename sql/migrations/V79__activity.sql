-- The order of the list of conversations. A conversation's activity is the id of its last message, or its own id where
-- there is none. A row per member would cost each message a write for each member, so the rows hold an upper bound: at
-- most 60 s above the activity at all times, and written anew only when the activity leaves these 60 s.

-- The upper bound that an activity sets: the last id of the millisecond 60 s later.
create function activity_ceiling(activity uuid) returns uuid
language sql immutable parallel safe as $$
    select (lpad(to_hex(least(('x' || translate(left(activity::text, 13), '-', ''))::bit(48)::bigint + 60000, 281474976710655)), 12, '0')
        || repeat('f', 20))::uuid
$$;

alter table conversation add column activity_until uuid;                  -- the bound in the rows below; null before V80

create table member_activity (
    conversation_id uuid        not null,
    principal_id    uuid        not null,
    activity_until  uuid        not null,                                 -- activity <= this <= activity_ceiling(activity)
    primary key (conversation_id, principal_id),
    foreign key (conversation_id, principal_id) references member on delete cascade
);
create index member_activity_latest on member_activity (principal_id, activity_until);
comment on table member_activity is 'owner: features/conversations';

create function note_activity() returns trigger
language plpgsql
    security definer set search_path = public, pg_temp as $$
declare
    activity uuid := coalesce(new.last_message_id, new.conversation_id);
begin
    if new.activity_until between activity and activity_ceiling(activity) then
        return new;
    end if;
    new.activity_until := activity_ceiling(activity);
    update member_activity set activity_until = new.activity_until where conversation_id = new.conversation_id;
    return new;
end $$;

create trigger conversation_activity_new before insert on conversation
    for each row execute function note_activity();
-- The condition costs a send less than the function. An id is below the one before it where the clocks of two nodes differ.
create trigger conversation_activity before update of last_message_id on conversation
    for each row when (not coalesce(new.last_message_id between old.last_message_id and old.activity_until, false))
    execute function note_activity();

create function note_member_activity() returns trigger
language plpgsql
    security definer set search_path = public, pg_temp as $$
begin
    -- Until the members change, their conversation's activity is not noted.
    perform from conversation c where c.conversation_id in (select conversation_id from added)
        order by c.conversation_id for no key update;
    insert into member_activity (conversation_id, principal_id, activity_until)
    select a.conversation_id, a.principal_id, coalesce(c.activity_until, activity_ceiling(coalesce(c.last_message_id, c.conversation_id)))
    from added a join conversation c on c.conversation_id = a.conversation_id;
    return null;
end $$;

create trigger member_activity_new after insert on member referencing new table as added
    for each statement execute function note_member_activity();
