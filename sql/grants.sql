-- The rights of the serving role (DATABASE_URL): exactly those that the named statements need, and no others.
-- `blindpipe migrate` applies this file after the migrations, as the owner of the schema, in one transaction.
-- By hand: psql -v serving_role=NAME -1 -f sql/grants.sql
--
-- A new table has no right until it has a line here. A test derives the lines from the statements and says which line
-- is missing or grants too much. Nothing here may grant update, delete or truncate on an append-only table; the rare
-- exception is a `security definer` function that belongs to the owner. Why: ADR 40.

revoke all on all tables in schema public from :"serving_role";
revoke all on all sequences in schema public from :"serving_role";
revoke create on schema public from public, :"serving_role";
grant usage on schema public to :"serving_role";

grant select on access_log to :"serving_role";
grant select, insert on access_log_digest to :"serving_role";
grant select on access_log_head to :"serving_role";
grant select on account_storage to :"serving_role";
grant select on active_member to :"serving_role";
grant select, insert, update on agent to :"serving_role";
grant select, insert, update, delete on agent_group to :"serving_role";
grant select, insert, delete on agent_group_given to :"serving_role";
grant select, insert, update, delete on agent_group_member to :"serving_role";
grant select, insert, update, delete on agent_key to :"serving_role";
grant select, insert, update on agent_grant to :"serving_role";
grant select on agent_grant_shown to :"serving_role";
grant select on agent_shown to :"serving_role";
grant select, insert, update on agent_token to :"serving_role";
grant select, insert, update, delete on announcement to :"serving_role";
grant select, insert, delete on announcement_recipient to :"serving_role";
grant select, insert, update, delete on approval to :"serving_role";
grant select, insert, update, delete on approval_asked to :"serving_role";
grant select, insert, update, delete on block to :"serving_role";
grant select on cluster to :"serving_role";
grant select, insert, update, delete on code_guard to :"serving_role";
grant select, insert, update on conversation to :"serving_role";
grant select, insert, update, delete on device to :"serving_role";
grant select, insert, update, delete on email_change to :"serving_role";
grant select, insert, update, delete on email_code to :"serving_role";
grant select, insert, delete on event to :"serving_role";
grant select, insert, update on event_object to :"serving_role";
grant select, insert on group_key to :"serving_role";
grant select, insert, delete on idempotency to :"serving_role";
grant select, insert, update on inbox to :"serving_role";
grant select, insert, delete on inbox_entry to :"serving_role";
grant select, insert, update, delete on inbox_reader to :"serving_role";
grant select, insert, update, delete on job to :"serving_role";
grant select, insert on key_backup to :"serving_role";
grant select on key_backup_erasure to :"serving_role";
grant select, update on live_agent_token to :"serving_role";
grant select on live_object to :"serving_role";
grant select, update on live_session to :"serving_role";
grant select, insert, update, delete on login_guard to :"serving_role";
grant select, insert, update, delete on login_notice to :"serving_role";
grant select, insert, update, delete on member to :"serving_role";
grant select on member_activity to :"serving_role";
grant select, insert, update on message to :"serving_role";
grant select, insert, delete on message_deletion to :"serving_role";
grant select, insert on message_ref to :"serving_role";
grant select, insert, delete on message_token to :"serving_role";
grant select, insert, update, delete on object to :"serving_role";
grant select, insert, update, delete on passkey to :"serving_role";
grant select, insert, update, delete on passkey_challenge to :"serving_role";
grant select, insert on passkey_device to :"serving_role";
grant select, update on public_key to :"serving_role";
grant select, insert, update, delete on push_subscription to :"serving_role";
grant select, update on push_sweep to :"serving_role";
grant select, insert, update, delete on push_wake to :"serving_role";
grant select, insert, delete on reconcile_log to :"serving_role";
grant select on refinery_schema_history to :"serving_role";
grant select, insert, update on relation to :"serving_role";
grant select, insert, update, delete on security_notice to :"serving_role";
grant select, insert, update, delete on session to :"serving_role";
grant select on session_change to :"serving_role";
grant select, insert, update, delete on share to :"serving_role";
grant select, insert, update, delete on tool_call to :"serving_role";
grant select, insert, update, delete on tool_consent to :"serving_role";
grant select, insert, update, delete on upload to :"serving_role";
grant insert on upload_audit to :"serving_role";
grant select, insert, update on user_account to :"serving_role";
grant select, insert, update, delete on webhook to :"serving_role";
grant select, insert, update, delete on webhook_delivery to :"serving_role";
grant select, insert, update, delete on webhook_stop to :"serving_role";
grant select, update on webhook_sweep to :"serving_role";
grant select, insert, update on webhook_turn to :"serving_role";

grant execute on function forget_key_backups to :"serving_role";
grant execute on function log_access to :"serving_role";
grant execute on function rotate_webhook_deliveries to :"serving_role";
