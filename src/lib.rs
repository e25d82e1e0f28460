//! Blindpipe: a messaging backend for people and agents. It stores public keys, ciphertext and
//! encrypted backups, and never a plaintext private key.
//!
//! The modules, from the bottom up. A module may use the modules of earlier lines and those to its
//! left. A test reads this map and checks every `use` and every path, so there are no circles.
//!
//! ```text
//! foundation  planted error clock random ids cursor events config metrics telemetry breaker
//!             validation supervisor
//! stores      db redis mail
//! core        limits auth access_log inbox objects
//! delivery    delivery
//! work        jobs work http egress
//! features    health published web_app announcements relations devices keys accounts passkeys agents
//!             blocks conversations groups group_keys messages files shares sessions search typing
//!             streams tool_calls grants approvals access_log budgets webhooks stops push
//!             revocations retention erasure
//! edge        gateway app routes documents schedule node healthcheck doctor load_accounts
//! ```
//!
//! - Foundation: values and small tools. [`validation`] says what a value from outside must be.
//! - Stores: [`db`] (Postgres, the truth), [`redis`] (hints and counters, which may vanish),
//!   [`mail`].
//! - Core: [`limits`] (budgets, quotas, connection slots), [`auth`] (credentials and callers),
//!   [`access_log`] (what agents read), [`inbox`] (the durable sequence of events), [`objects`]
//!   (the bytes of files).
//! - Delivery: [`delivery`] publishes committed events to the subscriptions of all nodes and
//!   reconciles them with Postgres. It knows neither WebSockets nor streams.
//! - Work: [`jobs`] (the queue), [`work`] (a transaction with its events, revocations and jobs),
//!   [`http`] (listener, bodies, answers), [`egress`] (calls to addresses that users chose).
//! - Features: [`features`], a folder per noun, each with its wire shapes, rules and SQL.
//!   [`features::messages`] is the only send path.
//! - Edge: [`gateway`] (WebSockets and polls), [`app`] (the handles of handlers), [`routes`] (every
//!   method and path), [`documents`] (OpenAPI and AsyncAPI), [`schedule`] (the performer of each
//!   job, and the upkeep), [`node`] (start and drain), [`healthcheck`], [`doctor`] (what a
//!   deployment needs), [`load_accounts`] (the accounts of a load
//!   test).
//!
//! Tables, one file each: [`routes`], [`limits::quotas`], [`delivery::backplane::messages`],
//! [`redis::keys`], [`metrics`], [`config`], [`jobs`], [`schedule`]. The rows that clients see are
//! in the protocol crate, so that the server, its tests and its clients share them. A module here
//! re-exports each:
//!
//! | table | its rows | the server's part |
//! |---|---|---|
//! | errors | `crates/protocol/src/errors.rs` | [`error`] |
//! | events | `crates/protocol/src/events.rs` | [`events`] |
//! | limits | `crates/protocol/src/limits.rs` | [`limits::table`] |
//! | ids | `crates/protocol/src/ids.rs` | [`ids`] |
//! | frames | `crates/protocol/src/frames.rs` | [`gateway::frames`] |
//! | close codes | `crates/protocol/src/close.rs` | [`gateway::close`] |
//!
//! Three rules hold everywhere. Postgres is the truth and Redis only hints. A node publishes after
//! the commit. Each request's own query reads whether its credential is still valid.
//!
//! Why: ADR 22.

pub(crate) mod access_log;
pub(crate) mod app;
pub mod auth;
mod breaker;
pub mod clock;
pub mod config;
pub(crate) mod cursor;
pub mod db;
pub mod delivery;
pub mod doctor;
pub mod documents;
pub mod egress;
pub mod error;
pub(crate) mod events;
pub mod features;
pub mod gateway;
pub mod healthcheck;
pub mod http;
pub mod ids;
pub mod inbox;
pub mod jobs;
pub mod limits;
pub mod load_accounts;
pub(crate) mod mail;
pub mod metrics;
pub mod node;
pub mod objects;
mod planted;
pub mod random;
pub mod redis;
pub mod routes;
pub mod schedule;
mod supervisor;
pub mod telemetry;
pub mod validation;
pub mod work;
