-- An agent with visibility `addressed` reads its own messages too: its questions and its earlier replies.
-- Sends of users do not touch this index.
create index if not exists message_by_agent on message (conversation_id, sender_id, seq) where sender_kind = 'agent';
