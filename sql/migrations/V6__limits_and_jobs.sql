-- Limits that Postgres counts, and work that waits for a job.

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

-- Codes that wait for the mail server. A job claims a row, sends the mail and deletes the row.
create table mail_outbox (
    mail_id         uuid        primary key,                              -- ULID
    recipient       text        not null,
    kind            text        not null check (kind in ('register', 'login', 'reset')), -- the code's scene; selects the text
    nonce           uuid        not null,                                 -- the code is derived from it
    attempts        integer     not null default 0,
    due_at          timestamptz not null default app_now(),               -- next try, or end of a claim
    expires_at      timestamptz not null                                  -- not worth sending later
);
create index mail_outbox_due on mail_outbox (due_at);

-- Mails that tell a user of a login on an unknown device. A user has a fixed number of places; each is free again a day
-- after its notice.
create table login_notice (
    user_id         uuid        not null references user_account,
    place           integer     not null,                                 -- 1 to the number of notices per day
    device_name     text,                                                 -- as the login had it
    noticed_at      timestamptz not null default app_now(),               -- when the login was
    attempts        integer     not null default 0,
    due_at          timestamptz default app_now(),                        -- next try, or end of a claim; null: sent
    primary key (user_id, place)
);
create index login_notice_due on login_notice (due_at) where due_at is not null;
create index login_notice_age on login_notice (noticed_at);

-- Devices that were revoked while they held keys of conversations. Each of these conversations must get another key; a
-- job asks for it, conversation by conversation.
create table lost_device (
    loss            bigint      generated always as identity primary key,
    user_id         uuid        not null,
    device_id       text        not null,
    lost_at         timestamptz not null default app_now(),
    due_at          timestamptz not null default app_now(),               -- of this round
    seen_through    uuid        not null default '00000000-0000-0000-0000-000000000000' -- conversations up to here are done in this round
);
create index lost_device_due on lost_device (due_at);
