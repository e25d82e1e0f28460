-- The groups of an agent, without its conversations with single users. Those may be many.
create index member_instance on member (principal_id, conversation_id) where instance_id is not null;
