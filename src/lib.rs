//! Blindpipe: a messaging backend for people and agents. It stores public keys, ciphertext and
//! encrypted backups, and never a plaintext private key.
//!
//! The modules, from the bottom up:
//!
//! - Foundation: [`config`], [`clock`], [`random`], [`ids`], [`cursor`], [`error`], [`validation`],
//!   [`breaker`], [`telemetry`], [`metrics`].
//! - Stores: [`db`] (Postgres, the truth) and [`redis`] (hints and counters, which may vanish).
//! - Core: [`inbox`] (the durable sequence of events), [`events`] (their encoding), [`auth`]
//!   (credentials and callers), [`limits`] (budgets, quotas, connection slots).
//! - Delivery: [`delivery`] publishes committed events to the subscriptions of all nodes and
//!   reconciles them with Postgres.
//! - Work: [`work`] (a transaction with its events, revocations and jobs), [`jobs`] (the queue),
//!   [`schedule`] (the performer of each job, and the upkeep), [`mail`].
//! - Features: [`features`], a folder per noun, each with its wire shapes, rules and SQL.
//!   [`features::messages`] is the only send path.
//! - Edge: [`http`] (listener, bodies, answers), [`gateway`] (WebSockets and polls), [`routes`]
//!   (every method and path), [`documents`] (OpenAPI and AsyncAPI).
//! - Node: [`node`] (start and drain), [`app`] (the handles of handlers), [`healthcheck`].
//!
//! Tables, one file each: [`routes`], [`error`], [`events`], [`ids`], [`limits::table`],
//! [`limits::quotas`], [`gateway::close`], [`gateway::frames`], [`delivery::backplane::messages`],
//! [`redis::keys`], [`metrics`], [`config`], [`jobs`], [`schedule`].
//!
//! Three rules hold everywhere. Postgres is the truth and Redis only hints. A node publishes after
//! the commit. Each request's own query reads whether its credential is still valid.

pub(crate) mod app;
pub mod auth;
mod breaker;
pub mod clock;
pub mod config;
pub(crate) mod cursor;
pub mod db;
pub mod delivery;
pub mod documents;
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
pub(crate) mod mail;
pub mod metrics;
pub mod node;
pub mod random;
pub mod redis;
pub mod routes;
pub mod schedule;
pub mod telemetry;
pub mod validation;
pub mod work;
