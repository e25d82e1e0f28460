-- A call to a webhook may bring several events.

alter table webhook add column max_events integer not null default 1
    constraint webhook_max_events_check check (max_events between 1 and 50);
