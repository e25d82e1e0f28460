-- Passkeys and the challenges that they answer.

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

-- Challenges under way, here rather than in a node or in Redis: any node may complete what another began, and the
-- delete that takes one decides who was first.
create table passkey_challenge (
    challenge_id    uuid        primary key,                              -- ULID
    user_id         uuid        references user_account on delete cascade, -- who enrols; null for a login
    state           text        not null,                                 -- JSON: what the answer is checked against
    expires_at      timestamptz not null
);
create index passkey_challenge_expiry on passkey_challenge (expires_at);
create index passkey_challenge_of_user on passkey_challenge (user_id) where user_id is not null;
