-- The partitions of the delivery log are compared as text. Postgres may judge the names of other tables first, and
-- after an `analyze` it did: `to_date` then failed for a name without a day, and with it the start of a node.
create or replace function rotate_webhook_deliveries(retained integer) returns integer language plpgsql security definer
    set search_path = public as $$
declare
    today date := (app_now() at time zone 'utc')::date;
    made integer := 0;
    day date;
    part text;
begin
    perform pg_advisory_xact_lock(hashtext('rotate_webhook_deliveries'));
    for day in select generate_series(today - 1, today + 7, interval '1 day')::date loop
        part := 'webhook_delivery_' || to_char(day, 'YYYYMMDD');
        if to_regclass(part) is null then
            execute format('create table %I partition of webhook_delivery for values from (%L) to (%L)',
                part, first_uuid_of(day), first_uuid_of(day + 1));
            made := made + 1;
        end if;
    end loop;
    for part in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'webhook_delivery'::regclass
            and right(c.relname, 8) < to_char(today - retained, 'YYYYMMDD')
    loop
        execute format('drop table %I', part);
    end loop;
    return made;
end
$$;
