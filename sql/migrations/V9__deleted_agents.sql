-- What a deleted agent leaves behind.

alter table agent add column left_at timestamptz;                         -- its relations are ended, its groups left
create index agent_to_leave on agent (deleted_at) where state = 'deleted' and left_at is null;
create index relation_of_agent on relation (agent_id) where state = 'active';
