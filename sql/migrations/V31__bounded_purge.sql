-- The purge of a relation takes turns with those of others: a batch, then the next relation.
-- When its next turn comes; null: when its purge is due. A batch moves it to the end, a failure by an hour.
alter table relation add column purge_turn_at timestamptz;
create index relation_purge_turn on relation (coalesce(purge_turn_at, purge_due)) where purge_due is not null;

-- What a batch takes next. A row that was purged leaves its index, so no batch reads what others have done.
create index if not exists tool_call_result on tool_call (user_id, agent_id, created_at) where result is not null;
create index if not exists agent_grant_reason on agent_grant (relation_id) where reason is not null;
create index if not exists upload_file on upload (conversation_id, confirmed_at)
    where object_key is not null and state = 'confirmed';
