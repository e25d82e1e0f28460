-- An agent's name for a call is the agent's own: another agent of the same user cannot take it first. An agent asks
-- several users under one name. Nodes of the build before answer 500 where they find several calls of a name.
alter table tool_call drop constraint tool_call_request;
alter table tool_call drop constraint tool_call_of_user;
alter table tool_call add constraint tool_call_request unique (agent_id, request_id, user_id);
create index tool_call_of_user on tool_call (user_id, request_id);

-- The device that alone may run the call; null: none has said so.
alter table tool_call add column claimed_by text;

-- The time of the prompt that began the silence, which bounds it.
alter table tool_consent add column prompted_at timestamptz not null default app_now();
