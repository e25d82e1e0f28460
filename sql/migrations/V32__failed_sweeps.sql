-- How often the store has refused to delete the object. Each failure makes the next wait longer.
alter table object add column sweep_failures integer not null default 0;
