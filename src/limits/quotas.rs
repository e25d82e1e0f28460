//! THE QUOTAS: sizes, lifetimes and deadlines that the interface fixes. KB and MB are binary.

use std::time::Duration;

/// One kibibyte.
pub const KB: usize = 1024;
/// One mebibyte.
pub const MB: usize = 1024 * KB;

/// A message's payload, as the sender wrote it.
pub const MAX_MESSAGE_BYTES: usize = MB;
/// What may surround a payload in a request body or frame: ids, field names.
pub const MESSAGE_ENVELOPE_BYTES: usize = 64 * KB;
/// An agent's manifest, as it was sent: the cap, and from where on its size is worth a warning.
pub const MAX_MANIFEST_BYTES: usize = 128 * KB;
/// See [`MAX_MANIFEST_BYTES`].
pub const MANIFEST_WARNING_BYTES: usize = 64 * KB;
/// What may surround a manifest in a request body.
pub const MANIFEST_ENVELOPE_BYTES: usize = 16 * KB;
/// Any other JSON body.
pub const MAX_BODY_BYTES: usize = 64 * KB;
/// A WebSocket frame before the socket is authenticated.
pub const MAX_AUTH_FRAME_BYTES: usize = 16 * KB;
/// How deep JSON may nest.
pub const MAX_JSON_DEPTH: usize = 64;

/// Life of an access token.
pub const ACCESS_TOKEN_TTL: Duration = Duration::from_secs(300);
/// Sliding life of a refresh token; the cookie's `Max-Age`.
pub const REFRESH_TOKEN_TTL: Duration = Duration::from_secs(30 * 86_400);
/// How long the predecessor of a refresh token gives the same successor.
pub const REFRESH_GRACE: Duration = Duration::from_secs(10);
/// Absolute end of a session, however often it is refreshed.
pub const MAX_SESSION_DAYS: i32 = 180;
/// What is worth a thief's while needs a login that is not older than this.
pub const REAUTH_WINDOW: Duration = Duration::from_secs(600);
/// Other public keys for a device that has some, likewise.
pub const REAUTH_WINDOW_FOR_KEYS: Duration = Duration::from_secs(300);
/// Versions of a device's key backup that stay.
pub const MAX_KEY_BACKUP_VERSIONS: i32 = 10;
/// Validity of a mailed code.
pub const CODE_TTL: Duration = Duration::from_secs(600);
/// Digits of a mailed code.
pub const CODE_DIGITS: usize = 8;
/// Mails to one user in a day that tell of logins on new devices.
pub const MAX_LOGIN_NOTICES_PER_DAY: i32 = 5;
/// Life of a passkey's challenge.
pub const CHALLENGE_TTL: Duration = Duration::from_secs(300);
/// Passkeys of one user.
pub const MAX_PASSKEYS_PER_USER: i64 = 20;
/// Wrong tries that burn a code.
pub const MAX_TRIES_PER_CODE: i32 = 5;

/// Simultaneous connections of one agent over all nodes, sockets and webhook calls together.
pub const MAX_AGENT_CONNECTIONS: usize = 3;
/// Simultaneous sockets of one user over all nodes.
pub const MAX_USER_CONNECTIONS: usize = 10;
/// Sockets of one address on one node that have not said yet whose they are.
pub const MAX_UNAUTHENTICATED_PER_IP: u32 = 100;
/// Between two beats of a node.
pub const NODE_BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A node that has not been heard of for this long has lost its connections' slots.
pub const NODE_LEASE: Duration = Duration::from_secs(6);
/// What an agent's earlier token and key are still good for after an ordinary change of either.
pub const AGENT_GRACE: Duration = Duration::from_secs(7 * 86_400);
/// Keys of an agent that may be valid at once; the oldest in grace make room.
pub const MAX_AGENT_KEYS: i64 = 50;

/// From the upgrade to the `auth` frame.
pub const AUTH_DEADLINE: Duration = Duration::from_secs(5);
/// Between two pings of the server.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(25);
/// From a ping to any sign of life.
pub const PONG_DEADLINE: Duration = Duration::from_secs(10);
/// Before an access token's end, `auth.expiring` is sent.
pub const EXPIRY_NOTICE: Duration = Duration::from_secs(60);
/// After an access token's end, the socket is closed.
pub const EXPIRY_GRACE: Duration = Duration::from_secs(10);
/// A socket that takes nothing for this long is a slow consumer.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Frames queued for one socket before bodies are dropped and read again from the inbox.
pub const MAX_MAILBOX_FRAMES: usize = 1024;
/// Bytes queued for one socket, likewise.
pub const MAX_MAILBOX_BYTES: usize = MB;
/// Of these, what may be ephemeral frames (typing, streams); more are dropped for good.
pub const MAX_EPHEMERAL_FRAMES: usize = 256;
/// Their bytes, likewise.
pub const MAX_EPHEMERAL_BYTES: usize = 256 * KB;
/// Frames a client may send in one second.
pub const MAX_FRAMES_PER_SECOND: u32 = 60;

/// Acks a client may send in one second.
pub const MAX_ACKS_PER_SECOND: u32 = 1000;
/// Deltas a client may send in one second, whatever the budgets of its streams.
pub const MAX_DELTAS_PER_SECOND: u32 = 2 * MAX_OPEN_STREAMS as u32 * MAX_STREAM_DELTAS_PER_SECOND;

/// How long `typing` holds unless it is said again.
pub const TYPING_TTL: Duration = Duration::from_secs(10);
/// The `data` of one `stream.delta`.
pub const MAX_DELTA_BYTES: usize = 16 * KB;
/// Deltas of one stream in any second.
pub const MAX_STREAM_DELTAS_PER_SECOND: u32 = 20;
/// Streams that an agent may have open on one node.
pub const MAX_OPEN_STREAMS: usize = 16;
/// A stream that says nothing for this long is cancelled.
pub const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Deltas kept for those who join late,
pub const MAX_STREAM_BACKLOG_DELTAS: usize = 256;
/// and for how long.
pub const STREAM_BACKLOG_TTL: Duration = Duration::from_secs(120);
/// Bytes of deltas that a node keeps, over all streams.
pub const MAX_STREAM_BACKLOG_BYTES: usize = 64 * MB;

/// Agents may answer each other this often without a human in between.
pub const MAX_HOPS: i16 = 8;

/// Members of a group, agents among them.
pub const MAX_GROUP_MEMBERS: usize = 500;
/// Users that one call adds to a group.
pub const MAX_GROUP_ADDITIONS: usize = 100;
/// Users that one transaction adds: each is an event for every member, and senders wait meanwhile.
pub const GROUP_ADDITIONS_PER_TRANSACTION: usize = 10;
/// Users of a conversation up to which all of them are told how far one has read.
pub const MAX_READ_MARK_RECIPIENTS: i64 = 50;
/// Principals that a message may name.
pub const MAX_RECIPIENTS: usize = 500;
/// A body with the wrapped keys of a large group.
pub const MAX_ROTATION_BYTES: usize = 2 * MB;
/// How long a peer may take to rotate when asked to.
pub const ROTATION_REQUEST_TTL: Duration = Duration::from_secs(86_400);

/// Longest a poll waits.
pub const MAX_POLL_WAIT_SECONDS: u64 = 25;
/// Events of one page, in items and in bytes.
pub const MAX_PAGE_EVENTS: i64 = 100;
/// A page ends early rather than grow past this (a single larger event is a page of its own).
pub const MAX_PAGE_BYTES: i64 = 4 * MB as i64;
