-- Less work per message.

-- What several conversations of one batch bring to one inbox, as one array.
create aggregate array_concat (anycompatiblearray) (sfunc = array_cat, stype = anycompatiblearray);

-- By the key first: clients choose ids that rise with time, so all senders write to the same few pages of the index, and what
-- is forgotten leaves whole pages behind. `on conflict (sender_id, key)` of nodes of before finds this one, too. Where the
-- table is large, build the index by hand before: the migration holds up who sends until it is there.
create unique index if not exists idempotency_by_key on idempotency (key, sender_id);
alter table idempotency drop constraint idempotency_pkey,
    add constraint idempotency_pkey primary key using index idempotency_by_key;
