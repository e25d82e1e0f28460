-- By age, so that what is cleaned up is found without reading what stays.

create index email_code_age on email_code (expires_at);
create index login_guard_age on login_guard (greatest(last_failure_at, locked_until));
create index code_guard_age on code_guard (coalesce(failures[array_upper(failures, 1)], '-infinity'));
create index session_age on session (least(revoked_at, refresh_expires_at, absolute_expires_at));
create index device_unnamed on device (created_at) where provisional;
