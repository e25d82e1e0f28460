-- A lock begins with the last failure and lasts as long as its limit says, so it is no column any more. locked_until is for
-- nodes of the version before and goes with the next one.
drop index login_guard_age;
create index login_guard_age on login_guard (last_failure_at);

-- Retention walks by age; what an event says goes when the last inbox entry that refers to it has gone.
create index event_age on event using brin (created_at);
