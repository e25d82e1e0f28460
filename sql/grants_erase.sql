-- The rights of the role that erases (ERASE_DATABASE_URL): one function, which erases the key backups of accounts whose
-- deletion is 7 days old. `blindpipe migrate` applies this file as the owner of the schema.
-- By hand: psql -v erasing_role=NAME -1 -f sql/grants_erase.sql

revoke all on all tables in schema public from :"erasing_role";
revoke all on all sequences in schema public from :"erasing_role";
revoke create on schema public from :"erasing_role";
grant usage on schema public to :"erasing_role";
grant execute on function erase_accounts to :"erasing_role";
