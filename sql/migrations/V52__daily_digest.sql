-- The daily digests of the access log that were published, so that one node publishes each once.
create table access_log_digest (
    day             date        primary key,                              -- in UTC; of the rows before its end
    digest          text        not null,                                 -- hex of a SHA-256
    chains          bigint      not null,
    published_at    timestamptz not null default app_now()
);
