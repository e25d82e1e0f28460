-- Mails that tell a user of a login on a device that was not known. A table of their own, beside mail_outbox: a node of
-- before would take each of its rows for a code. Each has one of so many places, which is free again a day later.
create table login_notice (
    user_id         uuid        not null references user_account,
    place           integer     not null,                                 -- 1 to as many as are sent in a day
    device_name     text,                                                 -- as the login had it
    noticed_at      timestamptz not null default app_now(),               -- when the login was
    attempts        integer     not null default 0,
    due_at          timestamptz default app_now(),                        -- next try, or end of a claim; null: sent
    primary key (user_id, place)
);
create index login_notice_due on login_notice (due_at) where due_at is not null;
create index login_notice_age on login_notice (noticed_at);
