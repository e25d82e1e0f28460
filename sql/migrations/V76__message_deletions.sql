-- Messages that were deleted of late, for deliveries that hold them. A lookup here is one probe of a small index, where
-- a lookup in `message` opens each of its partitions.
create table message_deletion (
    message_id      uuid        primary key,
    deleted_at      timestamptz not null default app_now()
);
create index message_deletion_age on message_deletion (deleted_at);
