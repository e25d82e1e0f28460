-- Devices that were revoked with keys of conversations in their hands. Each of these must get another key; that they ask
-- for it is worked off conversation by conversation, from here.
create table lost_device (
    loss            bigint      generated always as identity primary key,
    user_id         uuid        not null,
    device_id       text        not null,
    lost_at         timestamptz not null default app_now(),
    due_at          timestamptz not null default app_now(),               -- of this round
    seen_through    uuid        not null default '00000000-0000-0000-0000-000000000000' -- conversations up to here, in this round
);
create index lost_device_due on lost_device (due_at);
