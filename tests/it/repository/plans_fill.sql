-- Fills every table of the schema with 2,000 rows and tells the planner that there are 1,000,000.
-- The rows give the columns their statistics: distinct values, nulls, the spread of times.
-- The size is scaled in the catalog, for tables and indexes alike. Nothing is estimated by hand.
do $$
declare
    rows constant int := 2000;
    stated_rows constant real := 1000000;
    t record;
    c record;
    words text;
    columns text;
    terms text;
    term text;
begin
    set local session_replication_role = replica;
    perform rotate_webhook_deliveries(30);
    -- A vacuum would count the rows.
    for t in select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' loop
        execute format('alter table %I set (autovacuum_enabled = off)', t.relname);
    end loop;
    -- A popular agent's inbox has tens of thousands of entries.
    alter table inbox_entry alter column principal_id set (n_distinct = 20);
    for t in
        select oid, relname, relkind from pg_class
        where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and not relispartition
            and relname not in ('cluster', 'push_sweep', 'webhook_sweep', 'refinery_schema_history')
    loop
        columns := '';
        terms := '';
        for c in
            select a.attname, a.attnotnull, a.atttypid::regtype::text as type,
                -- Half of the rows have an empty text where that is the default.
                exists (select from pg_attrdef d where d.adrelid = t.oid and d.adnum = a.attnum
                    and pg_get_expr(d.adbin, t.oid) = $x$''::text$x$) as may_be_empty,
                -- The first column of a longer key has five rows for each value.
                exists (select from pg_index i where i.indrelid = t.oid and i.indnkeyatts > 1
                    and i.indkey[0] = a.attnum)
                and not exists (select from pg_index i where i.indrelid = t.oid and i.indnkeyatts = 1
                    and i.indisunique and i.indkey[0] = a.attnum) as repeats,
                (select substring(pg_get_constraintdef(k.oid) from 'ARRAY\[(.*?)\]') from pg_constraint k
                    where k.conrelid = t.oid and k.contype = 'c' and k.conkey = array[a.attnum]) as words
            from pg_attribute a
            where a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped and a.attidentity = ''
            order by a.attnum
        loop
            term := case when c.repeats then '(n / 5)' else 'n' end;
            term := case
                when c.words is not null then format('(array[%s])[1 + n %% cardinality(array[%s])]', c.words, c.words)
                when t.relname = 'webhook_delivery' and c.attname = 'delivery_id'
                    then $x$(left(first_uuid_of(current_date - 1 + n % 9)::text, 24) || lpad(to_hex(n), 12, '0'))::uuid$x$
                when c.type = 'uuid' then format('md5(%s::text)::uuid', term)
                when c.may_be_empty then format('case when n %% 2 = 0 then md5(%s::text) else %L end', term, '')
                when c.type = 'text' then format('md5(%s::text)', term)
                when c.type = 'bytea' then format('decode(md5(%s::text), ''hex'')', term)
                when c.type in ('integer', 'bigint') then term
                when c.type = 'smallint' then 'n % 8'
                when c.type = 'date' then 'current_date - n'
                when c.type = 'boolean' then 'n % 2 = 0'
                when c.type = 'timestamp with time zone' then format('app_now() + (n - %s) * interval ''1 minute''', rows / 2)
                when c.type like '%[]' then format('array[%s]::%s',
                    case c.type when 'uuid[]' then 'md5(n::text)::uuid' when 'text[]' then 'n::text'
                        when 'bigint[]' then 'n' else 'app_now()' end, c.type)
                when c.type = 'jsonb' then quote_literal('{}') || '::jsonb'
                when c.type = 'int8multirange' then quote_literal('{}') || '::int8multirange'
            end;
            if not c.attnotnull then
                term := format('case when n %% 2 = 0 then %s end', term);
            end if;
            columns := columns || ', ' || quote_ident(c.attname);
            terms := terms || ', ' || term;
        end loop;
        for c in select conname from pg_constraint where conrelid = t.oid and contype = 'c' and conislocal loop
            execute format('alter table %I drop constraint %I', t.relname, c.conname);
        end loop;
        execute format('insert into %I (%s) select %s from generate_series(1, %s) as n on conflict do nothing',
            t.relname, substr(columns, 3), substr(terms, 3), rows);
        execute format('analyze %I', t.relname);
    end loop;
    analyze cluster, push_sweep, webhook_sweep;
    update pg_class set reltuples = reltuples * stated_rows / rows
    where relnamespace = 'public'::regnamespace and reltuples > 100;
end $$;
