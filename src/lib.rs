//! Blindpipe: a messaging backend for people and agents. It holds public keys, ciphertext and encrypted backups, and
//! never a plaintext private key.
//!
//! The house, in the order in which a newcomer should walk through it:
//!
//! - Catalogues, one file each: [`routes`], [`error`], [`events`], [`ids`], [`limits::table`], [`limits::quotas`],
//!   [`gateway::close`], [`gateway::frames`], [`delivery::backplane::messages`], [`redis::keys`], [`metrics`], [`config`], [`jobs`],
//!   [`schedule`].
//! - The door: [`http`] (accept, TLS, request ids, client address, bodies), [`auth`] (who calls).
//! - The features: [`features`], a folder per noun, each with its wire shapes, rules and SQL.
//! - The pipe: [`features::messages`] (the one send path) writes inboxes ([`inbox`]); [`delivery`] hints at
//!   them across nodes and sweeps behind the hints; [`gateway`] reads them out to sockets.
//! - The frame: [`node`] (a node's life), [`app`] (its handles), [`db`], [`redis`], [`work`], [`mail`], [`clock`], [`random`],
//!   [`cursor`].
//!
//! Three rules hold everywhere: Postgres is the truth and Redis only hints; tell after commit; whether a credential
//! counts is read in the request's own query.

pub(crate) mod app;
pub mod auth;
mod breaker;
pub(crate) mod catalogue;
pub mod clock;
pub mod config;
pub(crate) mod cursor;
pub mod db;
pub(crate) mod delivery;
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
pub(crate) mod schedule;
pub mod telemetry;
pub(crate) mod validation;
pub(crate) mod work;
