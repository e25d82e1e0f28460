-- The first four bytes of a sealed secret name its key. After a change of the server's secret the nodes look for those
-- under another key and seal them anew.
create index if not exists webhook_secret_key on webhook (substring(sealed_secret from 1 for 4))
    where sealed_secret is not null;
create index if not exists webhook_previous_key on webhook (substring(sealed_previous from 1 for 4))
    where sealed_previous is not null;
-- Webhooks whose secret did not open. Nodes look whether it does again.
create index if not exists webhook_unreadable on webhook (agent_id) where last_error = 'secret_unreadable';
