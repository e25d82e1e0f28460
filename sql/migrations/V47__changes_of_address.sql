-- The address that an account is to have, until a code proves that its user reads mail there.

create table email_change (
    user_id     uuid        primary key references user_account on delete cascade,
    email       text        not null,                                     -- the new address, lower case
    session_id  uuid        not null,                                     -- only the session that asked may confirm
    nonce       uuid        not null,                                     -- the code is derived from it
    tries_left  integer     not null,                                     -- wrong tries that the code survives
    expires_at  timestamptz not null
);
-- Retention looks for expired changes.
create index email_change_age on email_change (expires_at);
