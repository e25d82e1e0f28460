-- What an agent was not shown stays hidden; what a stolen session made ends with it; notices and known devices.

-- With visibility `all`, an agent sees the messages after this one, and of those before only the ones that name it.
alter table member add column all_from_seq bigint not null default 0;

-- The session of the user that made the token. No foreign key: sessions are forgotten, and tokens stay.
alter table agent_token add column session_id uuid;
create index agent_token_of_session on agent_token (session_id) where session_id is not null and revoked_at is null;

-- The devices on which a passkey has signed in.
create table passkey_device (
    passkey_id      uuid        not null references passkey on delete cascade,
    user_id         uuid        not null,
    device_id       text        not null,
    primary key (passkey_id, device_id),
    foreign key (user_id, device_id) references device on update cascade on delete cascade
);
create index passkey_device_of_device on passkey_device (user_id, device_id);

-- The last mail of each kind about a change that a thief might make. There is one a day.
create table security_notice (
    user_id         uuid        not null references user_account,
    kind            text        not null,
    noticed_at      timestamptz not null default app_now(),
    primary key (user_id, kind)
);
create index security_notice_age on security_notice (noticed_at);

create or replace view live_agent_token as
    select * from agent_token where revoked_at is null and (valid_until is null or valid_until > app_now());

create or replace view active_member as
    select m.* from member m left join relation r on r.relation_id = m.relation_id
    where r.state is distinct from 'revoked';
