//! THE QUOTAS: sizes, lifetimes and deadlines that the interface fixes. KB and MB are binary.

use std::time::Duration;

/// Bytes of a kibibyte.
pub const KB: usize = 1024;
/// Bytes of a mebibyte.
pub const MB: usize = 1024 * KB;

/// A message's payload, as the sender wrote it.
pub const MAX_MESSAGE_BYTES: usize = MB;
/// Most bytes around a payload in a request body or frame: ids, field names.
pub const MESSAGE_ENVELOPE_BYTES: usize = 64 * KB;
/// Largest manifest of an agent, as it was sent.
pub const MAX_MANIFEST_BYTES: usize = 128 * KB;
/// Size of a manifest from which on the answer warns.
pub const MANIFEST_WARNING_BYTES: usize = 64 * KB;
/// Most bytes around a manifest in a request body.
pub const MANIFEST_ENVELOPE_BYTES: usize = 16 * KB;
/// Largest other JSON body.
pub const MAX_BODY_BYTES: usize = 64 * KB;
/// Largest file.
pub const MAX_FILE_BYTES: u64 = 100 * MB as u64;
/// Time that the address for a file's bytes is valid.
pub const UPLOAD_URL_TTL: Duration = Duration::from_secs(900);
/// Time in which an upload must be confirmed.
pub const UPLOAD_TTL: Duration = Duration::from_secs(86_400);
/// Uploads of a user or an agent whose bytes arrive at once, over all nodes.
pub const MAX_UPLOADS_AT_ONCE: i64 = 4;
/// Uploads whose bytes arrive at once on a node. Each holds some hundred kilobytes.
pub const MAX_UPLOADS_PER_NODE: usize = 256;
/// Uploads of an account and its agents whose bytes arrive at once on a node.
pub const MAX_UPLOADS_PER_ACCOUNT: usize = 4;
/// Uploads of an address whose bytes arrive at once on a node.
pub const MAX_UPLOADS_PER_ADDRESS: usize = 16;
/// Longest wait of an upload for a place.
pub const UPLOAD_QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
/// The least pace of uploads of who holds most places, while places are short.
pub const MIN_BYTES_PER_SECOND_OF_MOST: u64 = 256 * KB as u64;
/// Uploads to S3 whose parts a node keeps at once. A buffer has 5 MiB; other uploads are streamed.
pub const MAX_PART_BUFFERS_PER_NODE: usize = 6;
/// Longest life of a share.
pub const MAX_SHARE_TTL: Duration = Duration::from_secs(31 * 86_400);
/// Life of the address of a shared file.
pub const SHARE_URL_TTL: Duration = Duration::from_secs(300);
/// Largest WebSocket frame of a socket that has not authenticated.
pub const MAX_AUTH_FRAME_BYTES: usize = 16 * KB;
/// Deepest nesting of JSON.
pub const MAX_JSON_DEPTH: usize = 64;

/// Life of an access token.
pub const ACCESS_TOKEN_TTL: Duration = Duration::from_secs(300);
/// Sliding life of a refresh token; the cookie's `Max-Age`.
pub const REFRESH_TOKEN_TTL: Duration = Duration::from_secs(30 * 86_400);
/// Time in which the predecessor of a refresh token still gives its successor.
pub const REFRESH_GRACE: Duration = Duration::from_secs(10);
/// Absolute end of a session, however often it is refreshed.
pub const MAX_SESSION_DAYS: i32 = 180;
/// Greatest age of a login for sensitive changes.
pub const REAUTH_WINDOW: Duration = Duration::from_secs(600);
/// Greatest age of a session that lets agents in without another proof of identity.
pub const FRESH_SESSION_AGE: Duration = Duration::from_secs(3600);
/// Greatest age of a login for replacing a device's public keys.
pub const REAUTH_WINDOW_FOR_KEYS: Duration = Duration::from_secs(300);
/// Kept versions of a device's key backup.
pub const MAX_KEY_BACKUP_VERSIONS: i32 = 10;
/// Validity of a mailed code.
pub const CODE_TTL: Duration = Duration::from_secs(600);
/// Digits of a mailed code.
pub const CODE_DIGITS: usize = 8;
/// Mails per day that notify a user of logins on new devices.
pub const MAX_LOGIN_NOTICES_PER_DAY: i32 = 5;
/// Life of a passkey's challenge.
pub const CHALLENGE_TTL: Duration = Duration::from_secs(300);
/// Passkeys of one user.
pub const MAX_PASSKEYS_PER_USER: i64 = 20;
/// Wrong codes of an e-mail, in the window of `auth_code_tries`, after which every try needs a
/// verified human.
pub const MAX_WRONG_CODES_OF_ANYBODY: usize = 3;
/// Wrong tries that invalidate a code.
pub const MAX_TRIES_PER_CODE: i32 = 5;

/// Simultaneous connections of one agent over all nodes, sockets and webhook calls together.
pub const MAX_AGENT_CONNECTIONS: usize = 3;
/// Consumer groups of one agent.
pub const MAX_AGENT_GROUPS: i64 = 4;
/// Characters of a consumer group's name.
pub const MAX_GROUP_NAME_CHARS: usize = 64;
/// Days after which a consumer group without a connection is deleted.
pub const AGENT_GROUP_RETENTION_DAYS: i32 = 7;
/// Life of a shared socket's place in its group without a renewal.
pub const GROUP_LEASE: Duration = Duration::from_secs(10);
/// Interval between two renewals of a shared socket's place.
pub const GROUP_STEP_INTERVAL: Duration = Duration::from_secs(1);
/// Wait of a shared socket's ack for others.
pub const GROUP_ACK_INTERVAL: Duration = Duration::from_millis(20);
/// Events that a shared socket may have without an ack.
pub const MAX_GIVEN_EVENTS: i64 = 1_000;
/// Events behind a group's durable ack that its sockets may be given.
pub const MAX_GROUP_WINDOW_EVENTS: i64 = 10_000;
/// Simultaneous sockets of one user over all nodes.
pub const MAX_USER_CONNECTIONS: usize = 10;
/// Sockets of an address on a node that have not authenticated yet.
pub const MAX_UNAUTHENTICATED_PER_IP: u32 = 100;
/// Interval between two heartbeats of a node.
pub const NODE_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A node without a heartbeat for this long has lost its connections' slots.
pub const NODE_LEASE: Duration = Duration::from_secs(6);
/// Time that an agent's earlier token and key stay valid after an ordinary rotation.
pub const AGENT_GRACE: Duration = Duration::from_secs(7 * 86_400);
/// Keys of an agent that may be valid at once. The oldest ones in grace make room.
pub const MAX_AGENT_KEYS: i64 = 50;

/// Time from the upgrade to the `auth` frame.
pub const AUTH_DEADLINE: Duration = Duration::from_secs(5);
/// Interval between two pings of the server.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(25);
/// Time from a ping to any sign of life.
pub const PONG_DEADLINE: Duration = Duration::from_secs(10);
/// Time before an access token's end at which `auth.expiring` is sent.
pub const EXPIRY_NOTICE: Duration = Duration::from_secs(60);
/// Time after an access token's end at which the socket is closed.
pub const EXPIRY_GRACE: Duration = Duration::from_secs(10);
/// Frames queued for a socket before bodies are dropped and read again from the inbox.
pub const MAX_MAILBOX_FRAMES: usize = 1024;
/// Bytes queued for a socket before bodies are dropped and read again from the inbox.
pub const MAX_MAILBOX_BYTES: usize = MB;
/// Ephemeral frames (typing, streams) among the queued ones. More are dropped for good.
pub const MAX_EPHEMERAL_FRAMES: usize = 256;
/// Bytes of the queued ephemeral frames. More are dropped for good.
pub const MAX_EPHEMERAL_BYTES: usize = 256 * KB;
/// Frames that a client may send in a second.
pub const MAX_FRAMES_PER_SECOND: u32 = 60;

/// Acks that a client may send in a second.
pub const MAX_ACKS_PER_SECOND: u32 = 1000;
/// Deltas that a client may send in a second, whatever the budgets of its streams.
pub const MAX_DELTAS_PER_SECOND: u32 = 2 * MAX_OPEN_STREAMS as u32 * MAX_STREAM_DELTAS_PER_SECOND;

/// Time that `typing` lasts unless it is repeated.
pub const TYPING_TTL: Duration = Duration::from_secs(10);
/// Largest `data` of a `stream.delta`.
pub const MAX_DELTA_BYTES: usize = 16 * KB;
/// Deltas of a stream in any second.
pub const MAX_STREAM_DELTAS_PER_SECOND: u32 = 20;
/// Open streams of an agent.
pub const MAX_OPEN_STREAMS: usize = 16;
/// A stream without a sign for this long is cancelled.
pub const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest `data` of a `stream.checkpoint`.
pub const MAX_CHECKPOINT_BYTES: usize = 256 * KB;
/// Time from a checkpoint of a stream to the next one.
pub const STREAM_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(2);
/// Largest `data` of a `stream.status`.
pub const MAX_STREAM_STATUS_BYTES: usize = 2 * KB;
/// Deltas of a stream that are kept for late readers.
pub const MAX_STREAM_BACKLOG_DELTAS: usize = 256;
/// Time that a stream is kept after its last sign. It may begin again meanwhile.
pub const STREAM_STATE_TTL: Duration = Duration::from_secs(600);
/// Bytes of an agent's checkpoints, deltas and statuses that are kept, over all its streams.
pub const MAX_STREAM_STATE_BYTES: usize = 2 * MB;

/// Most answers of agents to each other since a user spoke.
pub const MAX_HOPS: i16 = 8;

/// Time that a user has to decide on an agent's request for scopes.
pub const GRANT_REQUEST_TTL: Duration = Duration::from_secs(7 * 86_400);
/// Scopes of a request. An index holds them.
pub const MAX_GRANT_SCOPES: usize = 16;
/// Shortest and longest requested life of a grant, in seconds.
pub const GRANT_TTL_SECONDS: std::ops::RangeInclusive<i64> = 60..=365 * 86_400;
/// Time from a call of high sensitivity to its answer.
pub const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from any other call of a tool to its answer. Devices refuse older requests.
pub const TOOL_CALL_TIMEOUT: Duration = Duration::from_secs(300);
/// Time since the last call of medium sensitivity in which the next one needs no prompt.
pub const CONSENT_WINDOW: Duration = Duration::from_secs(86_400);
/// Time from a prompt to the next one, however many calls of medium sensitivity slide the window.
pub const MAX_CONSENT: Duration = Duration::from_secs(30 * 86_400);
/// Days that ended tool calls are kept, as long as the events about them.
pub const TOOL_CALL_RETENTION_DAYS: i32 = 30;

/// Open approvals of an agent with a user.
pub const MAX_OPEN_APPROVALS: i64 = 100;
/// Shortest and longest time to an approval's deadline, in seconds.
pub const APPROVAL_TTL_SECONDS: std::ops::RangeInclusive<i64> = 60..=30 * 86_400;
/// Time to an approval's deadline if its agent names none, in seconds.
pub const DEFAULT_APPROVAL_TTL_SECONDS: i64 = 3 * 86_400;

/// Members of a group, with its agents.
pub const MAX_GROUP_MEMBERS: usize = 500;
/// Users that a call adds to a group.
pub const MAX_GROUP_ADDITIONS: usize = 100;
/// Users that a transaction adds. Each is an event for every member, and senders wait meanwhile.
pub const GROUP_ADDITIONS_PER_TRANSACTION: usize = 10;
/// Most users of a conversation in which each is notified how far another has read.
pub const MAX_READ_MARK_RECIPIENTS: i64 = 50;
/// Most users of a conversation in which each mark is told at once. Above, marks are gathered.
pub const MAX_PROMPT_READ_MARK_RECIPIENTS: i64 = 8;
/// Time for which read marks of a conversation are gathered.
pub const READ_MARK_GATHERING: Duration = Duration::from_secs(1);
/// Principals that a message may address.
pub const MAX_RECIPIENTS: usize = 500;
/// Search tokens of a message.
pub const MAX_SEARCH_TOKENS: usize = 64;
/// The messages to which a message may refer.
pub const MAX_REFS: usize = 8;
/// The messages of an answer that refer to its page.
pub const MAX_REFERRING: i64 = 200;
/// Largest body with the wrapped keys of a large group.
pub const MAX_ROTATION_BYTES: usize = 2 * MB;
/// Time that a peer has to rotate the keys after a request.
pub const ROTATION_REQUEST_TTL: Duration = Duration::from_secs(86_400);

/// The time in which bytes may pass a connection at any pace, in either direction.
pub const UNPACED_TIME: Duration = Duration::from_secs(10);
/// The least pace after [`UNPACED_TIME`].
pub const MIN_BYTES_PER_SECOND: u64 = 16 * KB as u64;

/// Longest wait of a poll.
pub const MAX_POLL_WAIT_SECONDS: u64 = 25;
/// Most events of a page that is read for a socket or a webhook.
pub const MAX_PAGE_EVENTS: i64 = 100;
/// Most events of a poll's answer. An agent that polls 60 times a minute reads a thousand a second.
pub const MAX_POLL_EVENTS: i64 = 1_000;
/// Most events of a call to a webhook. Each has a row of the log, and one failure repeats all of them.
pub const MAX_WEBHOOK_EVENTS: i32 = 50;
/// Most bytes of a page. It ends early rather than grow past this, but a single larger event is a
/// page of its own.
pub const MAX_PAGE_BYTES: i64 = 4 * MB as i64;
/// Most bytes of a page that is read for a socket.
pub const SOCKET_PAGE_BYTES: usize = 256 * KB;
/// Bytes of a page, a mailbox or a frame that a socket holds without a permit.
pub const FREE_SOCKET_BYTES: usize = 64 * KB;
