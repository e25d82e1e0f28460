-- The time of a delivery of the oldest day that has any; null without deliveries. Days are looked at one by one,
-- because no index orders all deliveries, and a day's partition is made ahead of its rows.
create function oldest_webhook_delivery() returns timestamptz language plpgsql stable as $$
declare
    day date;
    found uuid;
begin
    for day in
        select to_date(right(c.relname, 8), 'YYYYMMDD') from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'webhook_delivery'::regclass order by 1
    loop
        select delivery_id into found from webhook_delivery
        where delivery_id >= first_uuid_of(day) and delivery_id < first_uuid_of(day + 1) limit 1;
        if found is not null then
            return to_timestamp(('x' || left(replace(found::text, '-', ''), 12))::bit(48)::bigint / 1000.0);
        end if;
    end loop;
    return null;
end $$;
