//! The vocabulary of tests: nodes, principals as clients, sockets, a clock that moves.
//!
//! `let [a, b] = nodes().await;` starts two nodes in this process with a database and a Redis
//! prefix of their own. `a.advance(..)` moves the clock of all nodes and of their database.

mod authenticator;
mod authority;
mod behaviour;
mod browser;
mod client;
mod collector;
mod devtools;
mod dice;
mod faulty_receiver;
pub mod h2;
mod hostile;
mod names;
mod openapi;
mod process;
mod proxy;
pub mod raw;
mod receiver;
mod s3;
mod secrets;
mod services;
mod siteverify;
mod smtp;
mod socket;
mod statistics;
mod wire;
mod world;

pub use self::{
    authenticator::Authenticator,
    authority::Authority,
    behaviour::Behaviour,
    browser::browser,
    client::{Agent, Answer, Caller, PASSWORD, User, claims_of, patiently, ulid},
    collector::{Collector, ExportedSpan},
    devtools::DevTools,
    dice::Dice,
    faulty_receiver::FaultyReceiver,
    hostile::{
        channel_to, directory_entry, forged, knock, knock_and_stay, publish, sealed, wrong_secret,
    },
    names::NameServer,
    process::{Ended, ProcessNode, free_port},
    proxy::{Held, Proxy, late},
    receiver::{Call, Receiver, Reply},
    s3::S3Server,
    secrets::lines_since,
    services::{
        blocked, chosen_redis, connect, crowd, db, empty_database, erasing, followed_postgres,
        give_role_timeouts, has_pgbouncer, pgbouncer, private_redis, psql, redis_client,
        redis_cluster, redis_link, redis_sentinels, request_upkeep, services, serving, spawn,
        synchronous_postgres, through, waiting,
    },
    siteverify::{FaultMode, SECRET as TURNSTILE_SECRET, SiteVerify},
    smtp::{PASSWORD as SMTP_PASSWORD, Secrecy, SmtpServer},
    socket::{Sleeper, Socket},
    statistics::Shift,
    wire::Wire,
    world::{FULL_HASHES, TestNode, World, find_code, nodes, nodes_with, server_secrets},
};
