//! The statements, which are those of the clients in Python and TypeScript.

/// The tables of these stores, in the schema that the connection uses. All names of stores may share
/// them, and processes in Python and TypeScript too. The statements may run again at every start, but
/// not in two processes at once.
pub const POSTGRES_TABLES: [&str; 4] = [
    "create table if not exists blindpipe_entry (
    store text, section text, name text, entry jsonb not null, changes bigint not null,
    by_process text not null, changed_by xid8 not null default pg_current_xact_id(),
    primary key (store, section, name))",
    "create table if not exists blindpipe_handled (
    store text, conversation text, sender text, message text, at bigint not null,
    by_process text not null, changed_by xid8 not null default pg_current_xact_id(),
    primary key (store, conversation, sender, message))",
    "create index if not exists blindpipe_handled_at on blindpipe_handled (store, at)",
    "create table if not exists blindpipe_owner (
    store text, conversation text, by_process text not null, primary key (store, conversation))",
];

pub(super) const LOAD: &str = "select section, name, entry::text as text, changes,
    pg_snapshot_xmin(pg_current_snapshot())::text as read_to
  from blindpipe_entry where store = $1";

pub(super) const FORGET: &str = "delete from blindpipe_handled where store = $1 and at < $2";

pub(super) const HANDLED: &str = "select at, conversation, sender, message from blindpipe_handled
  where store = $1 and at >= $2 order by at";

// An entry that this process does not know must not be there. A division by zero takes all back.
pub(super) const SAVE: &str = "with given as (
    select * from unnest($3::text[], $4::text[], $5::text[], $6::bigint[])
      as given (section, name, entry, changes)
  ), saved as (
    insert into blindpipe_entry as e (store, section, name, entry, changes, by_process)
    select $1, section, name, entry::jsonb, changes + 1, $2 from given order by section, name
    on conflict (store, section, name) do update
      set entry = excluded.entry, changes = excluded.changes, by_process = excluded.by_process,
        changed_by = pg_current_xact_id()
      where e.changes = excluded.changes - 1
    returning 1
  )
  select 1 / ((select count(*) from saved) = (select count(*) from given))::int as all_saved";

pub(super) const ADD_HANDLED: &str = "insert into blindpipe_handled
    (store, by_process, conversation, sender, message, at)
  select $1, $2, * from unnest($3::text[], $4::text[], $5::text[], $6::bigint[])
  order by 3, 4, 5 on conflict do nothing";

pub(super) const ENTER: &str = "insert into blindpipe_owner as o (store, conversation, by_process)
  values ($1, $3, $2)
  on conflict (store, conversation) do update set by_process = excluded.by_process
    where o.by_process <> excluded.by_process
  returning 1";

// Sections: of an entry, of a handled message, and how far this is read.
pub(super) const NEWS: &str =
    "select section, name, entry::text as text, changes from blindpipe_entry
  where store = $1 and by_process <> $2
    and (section = 'pins' and changed_by >= $4::text::xid8
      or section = 'marks' and name = $3 and changed_by >= $5::text::xid8)
  union all
  select 'handled', sender, message, at from blindpipe_handled
  where store = $1 and by_process <> $2 and conversation = $3 and changed_by >= $5::text::xid8
  union all
  select 'read_to', null, pg_snapshot_xmin(pg_current_snapshot())::text, null";
