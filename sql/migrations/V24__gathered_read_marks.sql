-- In a group of more than a few users, read marks are told together, a second after the first of them (ADR 94).
-- Since when a mark waits to be told; null: every member knows it. The index is what the sweep reads.
alter table member add column mark_untold_since timestamptz;
create index member_mark_untold on member (conversation_id, mark_untold_since) where mark_untold_since is not null;
