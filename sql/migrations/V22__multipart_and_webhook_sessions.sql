-- The parts of a large object, and the sessions that set a webhook.

-- The store's id of the multipart upload that writes the object. The sweep aborts it.
alter table object add column multipart_id text;

-- The owner's sessions that set the address and the secret; null: the agent did. No foreign keys: sessions are forgotten,
-- and webhooks stay.
alter table webhook add column url_session_id uuid, add column secret_session_id uuid;
create index webhook_of_url_session on webhook (url_session_id) where url_session_id is not null;
create index webhook_of_secret_session on webhook (secret_session_id) where secret_session_id is not null;
