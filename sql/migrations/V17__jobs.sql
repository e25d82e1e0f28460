-- One queue for what happens after an answer: mail, erasures, upkeep. It takes the place of the tables and columns that
-- each feature had for its own. Nothing has been released on the schema before, so what waits there is not moved.

create table job (
    job_id          bigint      generated always as identity primary key,
    kind            text        not null,                                 -- who does it, and how often it may be tried
    payload         text        not null,                                 -- JSON: what is to be done
    unique_key      text,                                                 -- one job of a kind by this name; null: any number
    run_at          timestamptz not null default app_now(),               -- the next try
    expires_at      timestamptz,                                          -- not worth doing later; null: always
    attempts        integer     not null default 0,                       -- begun; a worker's claim is good for one of them
    leased_until    timestamptz,                                          -- a worker has it; null: nobody
    last_error      text,                                                 -- why the last try failed, without the caller's data
    failed_at       timestamptz                                           -- given up; kept until it expires, to be looked at
);
create index job_due on job (kind, run_at) where failed_at is null;
create index job_age on job (expires_at) where expires_at is not null;
create unique index job_unique on job (kind, unique_key) where unique_key is not null and failed_at is null;

drop table mail_outbox;
drop table lost_device;
-- The places of a day stay; the mails wait in the queue.
alter table login_notice drop column attempts, drop column due_at, drop column device_name;
alter table user_account drop column erased_at;
alter table agent drop column left_at;
