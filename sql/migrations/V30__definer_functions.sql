-- Functions that run as the owner look for no table among the temporary ones of their caller.
alter function record_revocation() set search_path = public, pg_temp;
alter function rotate_webhook_deliveries set search_path = public, pg_temp;
