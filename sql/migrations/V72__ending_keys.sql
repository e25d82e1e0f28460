-- The days before the end of its grace at which an agent last heard that this key ends.
alter table agent_key add column notice_days smallint check (notice_days between 1 and 3);
