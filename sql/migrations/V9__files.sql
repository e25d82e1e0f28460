-- Files: what the object store holds, uploads, shares.

-- Every key that the object store may hold. The row exists before the first byte is written and until the last one is
-- deleted, so a crash leaves no bytes that nobody knows.
create table object (
    object_key      text        primary key,                              -- random, never the name of a file
    size            bigint,
    sha256          bytea,                                                -- null: its bytes are still being written
    writer_id       uuid,                                                 -- the owner of an upload that a node writes
    delete_at       timestamptz,                                          -- when the bytes go; the writer's lease before they are whole
    is_ending       boolean     not null default false,                   -- the sweep deletes the bytes; nobody completes or reads them
    created_at      timestamptz not null default app_now()
);
create index object_end on object (delete_at) where delete_at is not null;
-- Objects that may be completed or read.
create view live_object as
    select * from object where not is_ending and (delete_at is null or delete_at > app_now());

create index object_of_writer on object (writer_id) where sha256 is null and writer_id is not null;

-- The upload of a file. A confirmed one is the file.
create table upload (
    upload_id       uuid        primary key,
    conversation_id uuid        not null references conversation,
    uploader_id     uuid        not null,
    uploader_kind   text        not null,
    credential_id   uuid        not null,                                 -- the session or token that asked; its end ends the signed URL
    filename        text        not null,
    content_type    text        not null,
    size            bigint      not null,                                 -- declared
    state           text        not null default 'pending',
    object_key      text        unique references object on delete set null, -- null: no bytes yet, or none any more
    direct_key      text        references object on delete set null,     -- where the store's own signed URL leads; null: through a node
    url_expires_at  timestamptz not null,
    confirmed_at    timestamptz,
    created_at      timestamptz not null default app_now(),
    constraint upload_state_check check (state in ('pending', 'uploaded', 'confirmed', 'rejected', 'expired')),
    constraint upload_uploader_kind_check check (uploader_kind in ('user', 'agent'))
);
create index upload_of_conversation on upload (conversation_id);
create index upload_of_uploader on upload (uploader_id);
create index upload_direct on upload (direct_key) where direct_key is not null;
create index upload_age on upload (created_at) where state <> 'confirmed';

-- Uploads whose bytes were not those that their uploader announced. Rows outlive what they are about.
create table upload_audit (
    audit_id        bigint      generated always as identity primary key,
    upload_id       uuid        not null,
    conversation_id uuid        not null,
    uploader_id     uuid        not null,
    announced_sha256 bytea      not null,
    received_sha256 bytea       not null,
    size            bigint      not null,
    created_at      timestamptz not null default app_now()
);

create function upload_audit_is_append_only() returns trigger language plpgsql as $$
begin
    raise exception 'upload_audit is append-only' using errcode = 'insufficient_privilege';
end $$;
create trigger upload_audit_rows before update or delete on upload_audit
    for each row execute function upload_audit_is_append_only();
create trigger upload_audit_truncate before truncate on upload_audit
    for each statement execute function upload_audit_is_append_only();

-- The data of an event that is too large for a webhook.
create table event_object (
    agent_id        uuid        not null references agent,
    event_id        uuid        not null,
    conversation_id uuid        references conversation,
    object_key      text        not null unique references object on delete cascade,
    primary key (agent_id, event_id)
);
create index event_object_of_conversation on event_object (conversation_id) where conversation_id is not null;

-- Links that show a file, an agent's card or a contact to anyone who has them.
create table share (
    share_hash      bytea       primary key,                              -- SHA-256 of the id: a stolen table opens nothing
    owner_id        uuid        not null references user_account,
    kind            text        not null,
    upload_id       uuid        references upload on delete cascade,
    agent_id        uuid        references agent,
    expires_at      timestamptz not null,
    max_access_count integer,
    access_count    integer     not null default 0,
    created_at      timestamptz not null default app_now(),
    constraint share_kind_check check (kind in ('file', 'agent', 'contact'))
);
create index share_of_owner on share (owner_id);
create index share_of_upload on share (upload_id) where upload_id is not null;
create index share_of_agent on share (agent_id) where agent_id is not null;
create index share_age on share (expires_at);
