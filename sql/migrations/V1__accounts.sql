-- Accounts, codes by mail, devices, sessions.

-- The one clock of the database. A test replaces it by one that it can move; statement_timestamp() rather than now(),
-- because a statement that waited for a lock must not carry the time before the wait.
create function app_now() returns timestamptz language sql stable parallel safe
    as 'select statement_timestamp()';

create table user_account (
    user_id         uuid        primary key,                              -- ULID
    email           text        not null constraint user_account_email_key unique, -- lower case, as it is mailed
    display_name    text        not null,
    device_locale   text        not null,                                 -- language of mails
    password_hash   text        not null,                                 -- Argon2id, PHC string
    created_at      timestamptz not null default app_now()
);

-- Failed password logins. Also for e-mails without an account, so that both look alike.
create table login_guard (
    email           text        primary key,
    failures        integer     not null,                                 -- since the last quiet quarter of an hour
    last_failure_at timestamptz not null,
    locked_until    timestamptz                                           -- set by the fifth failure
);

-- The newest code of an e-mail and scene. The code itself is nowhere: it is derived from the nonce with the server's
-- secret, when it is mailed and when it is checked.
create table email_code (
    email           text        not null,
    scene           text        not null check (scene in ('register', 'login', 'reset')),
    nonce           uuid        not null,
    tries_left      integer     not null,                                 -- wrong tries that it survives
    expires_at      timestamptz not null,
    primary key (email, scene)
);

-- Wrong codes of an e-mail over all scenes, newest last; at most as many as the limit counts.
create table code_guard (
    email           text          primary key,
    failures        timestamptz[] not null
);

-- Mail that waits for the mail server. A row is claimed, sent and deleted.
create table mail_outbox (
    mail_id         uuid        primary key,                              -- ULID
    recipient       text        not null,
    kind            text        not null,                                 -- which text to send
    nonce           uuid        not null,                                 -- what the code is derived from
    attempts        integer     not null default 0,
    due_at          timestamptz not null default app_now(),               -- next try, or end of a claim
    expires_at      timestamptz not null                                  -- not worth sending later
);
create index mail_outbox_due on mail_outbox (due_at);

create table device (
    user_id         uuid        not null references user_account,
    device_id       text        not null,                                 -- client's choice; unique per user only
    display_name    text,
    platform        text,
    provisional     boolean     not null,                                 -- named by us until the first key backup
    created_at      timestamptz not null default app_now(),
    last_seen_at    timestamptz not null default app_now(),
    primary key (user_id, device_id)
);

-- One sign-in of a device: the family that its refresh tokens belong to. Tokens are not stored: one is the session,
-- a generation and a MAC over both, and is good if the generation is.
create table session (
    session_id          uuid        primary key,                          -- ULID
    user_id             uuid        not null,
    device_id           text        not null,
    generation          integer     not null default 0,                   -- of the current refresh token
    rotated_at          timestamptz not null default app_now(),           -- when that generation began
    refresh_expires_at  timestamptz not null,                             -- slides
    absolute_expires_at timestamptz not null,                             -- does not
    authenticated_at    timestamptz not null default app_now(),           -- last proof of identity, for re-authentication
    revoked_at          timestamptz,
    revoke_reason       text,
    foreign key (user_id, device_id) references device on update cascade
);
create index session_of_device on session (user_id, device_id) where revoked_at is null;
