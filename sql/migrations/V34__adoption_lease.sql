-- Until when a node copies and hashes what the client has written to the store itself. Other confirmations wait.
alter table upload add column adopted_until timestamptz;
