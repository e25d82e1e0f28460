-- The erasure of an account ends its open uploads in batches.
create index if not exists upload_open on upload (uploader_id, upload_id) where state in ('pending', 'uploaded');
