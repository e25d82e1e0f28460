-- The epoch of a turn's numbers: `done` names events of this one.
alter table webhook_turn add column epoch bigint;
