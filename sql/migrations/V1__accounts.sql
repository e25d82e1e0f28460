-- Accounts, devices, sessions, codes by mail, passkeys.

-- The database's only clock. It is statement_timestamp() and not now(): a statement that waited for a lock must not
-- carry the time before the wait. Tests replace this function by a clock that they can move.
create function app_now() returns timestamptz language sql stable parallel safe
    as 'select statement_timestamp()';

create table user_account (
    user_id          uuid        primary key,                             -- ULID
    email            text        not null constraint user_account_email_key unique, -- lower case, as it is mailed
    display_name     text        not null,
    device_locale    text        not null,                                -- language of mails
    password_hash    text        not null,                                -- Argon2id, PHC string
    key_list_version integer     not null default 0,                      -- rises with every change of the devices' keys
    created_at       timestamptz not null default app_now(),
    deleted_at       timestamptz                                          -- from then on nothing of the account works
);

create table device (
    user_id         uuid        not null references user_account,
    device_id       text        not null,                                 -- the client's choice; unique per user only
    display_name    text,
    platform        text,
    provisional     boolean     not null,                                 -- the server chose device_id; holds until the first key backup
    renamed_from    text,                                                 -- its provisional id, which open sockets still use
    key_id          text,                                                 -- of the keys in the directory; null: none
    key_version     integer,                                              -- the backup that holds them
    key_since       timestamptz,                                          -- when they became the device's keys
    created_at      timestamptz not null default app_now(),
    last_seen_at    timestamptz not null default app_now(),
    revoked_at      timestamptz,                                          -- by its owner; the next sign-in clears it
    primary key (user_id, device_id)
);
-- Retention looks for provisional devices by age.
create index device_unnamed on device (created_at) where provisional;

-- A sign-in of a device: the family that its refresh tokens belong to. Tokens are not stored. A token holds the
-- session's id, a generation and a MAC over both; it is valid if the generation is.
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
    -- As its sockets are told.
    revoke_reason       text check (revoke_reason in (
        'device_revoked', 'logout', 'password_reset', 'refresh_reuse', 'token_revoked', 'token_regenerated', 'account_deleted')),
    foreign key (user_id, device_id) references device on update cascade
);
-- Not partial: renaming or deleting a device must find all its sessions, ended ones too.
create index session_of_any_device on session (user_id, device_id);
-- Retention looks for the moment at which a session ended.
create index session_age on session (least(revoked_at, refresh_expires_at, absolute_expires_at));

-- The newest code of an e-mail and scene. The code itself is not stored: the server derives it from the nonce and its
-- secret, when it mails the code and when it checks it.
create table email_code (
    email           text        not null,
    scene           text        not null check (scene in ('register', 'login', 'reset')),
    nonce           uuid        not null,
    tries_left      integer     not null,                                 -- wrong tries that it survives
    expires_at      timestamptz not null,
    primary key (email, scene)
);
create index email_code_age on email_code (expires_at);

create table passkey (
    passkey_id      uuid        primary key,                              -- ULID
    user_id         uuid        not null references user_account on delete cascade,
    credential_id   bytea       not null constraint passkey_credential_id_key unique, -- the authenticator's name for it
    name            text        not null,                                 -- the user's name for it
    credential      text        not null,                                 -- JSON: public key, signature counter, flags
    created_at      timestamptz not null default app_now(),
    last_used_at    timestamptz
);
create index passkey_of_user on passkey (user_id, passkey_id);

-- The devices on which a passkey has signed in.
create table passkey_device (
    passkey_id      uuid        not null references passkey on delete cascade,
    user_id         uuid        not null,
    device_id       text        not null,
    primary key (passkey_id, device_id),
    foreign key (user_id, device_id) references device on update cascade on delete cascade
);
create index passkey_device_of_device on passkey_device (user_id, device_id);

-- Challenges that wait for their answer. They are in Postgres so that any node can complete what another one began.
-- The delete that takes a challenge decides which of two answers was first.
create table passkey_challenge (
    challenge_id    uuid        primary key,                              -- ULID
    user_id         uuid        references user_account on delete cascade, -- the user who enrols; null for a login
    state           text        not null,                                 -- JSON: the answer is checked against this
    expires_at      timestamptz not null
);
create index passkey_challenge_expiry on passkey_challenge (expires_at);
create index passkey_challenge_of_user on passkey_challenge (user_id) where user_id is not null;
