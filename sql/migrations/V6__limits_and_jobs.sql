-- Limits that Postgres counts, and the queue of jobs.

-- Failed password logins. E-mails without an account are counted too, so that both look alike. The lock begins with
-- the last failure and lasts for the window of its limit.
create table login_guard (
    email           text        primary key,
    failures        integer     not null,                                 -- since the last window without a failure
    last_failure_at timestamptz not null
);
create index login_guard_age on login_guard (last_failure_at);

-- Wrong codes of an e-mail over all scenes, newest last; at most as many as the limit counts.
create table code_guard (
    email           text          primary key,
    failures        timestamptz[] not null
);
create index code_guard_age on code_guard (coalesce(failures[array_upper(failures, 1)], '-infinity'));

-- The logins on unknown devices that a user was told of. A user has a fixed number of places; each is free again a day
-- after its notice.
create table login_notice (
    user_id         uuid        not null references user_account,
    place           integer     not null,                                 -- 1 to the number of notices per day
    noticed_at      timestamptz not null default app_now(),               -- when the login was
    primary key (user_id, place)
);
create index login_notice_age on login_notice (noticed_at);

-- The last mail of each kind about a change that a thief might make. There is one a day.
create table security_notice (
    user_id         uuid        not null references user_account,
    kind            text        not null,
    noticed_at      timestamptz not null default app_now(),
    primary key (user_id, kind)
);
create index security_notice_age on security_notice (noticed_at);

-- The queue of what happens after an answer: mail, erasures, upkeep. A worker on any node claims a row, does it and
-- deletes the row.
create table job (
    job_id          bigint      generated always as identity primary key,
    kind            text        not null,                                 -- selects the worker
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
