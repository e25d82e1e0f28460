-- What one statement brings to one inbox is one row: a burst of messages into a large group costs a row per member, not
-- one per member and message. Nothing has been released on the schema before, so this expands and contracts in one step.
alter table inbox_entry add column event_ids uuid[];                      -- events, or the messages they announce; the last is number seq
update inbox_entry set event_ids = array[event_id];
alter table inbox_entry alter column event_ids set not null, drop column event_id;
