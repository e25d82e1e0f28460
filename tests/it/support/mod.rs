//! The vocabulary of tests: nodes, principals as clients, sockets, a clock that moves.
//!
//! `let [a, b] = nodes().await;` starts two nodes in this process with a database and a Redis
//! prefix of their own.

mod authenticator;
mod client;
mod devtools;
mod hostile;
mod process;
mod proxy;
pub mod raw;
mod s3;
mod services;
mod siteverify;
mod smtp;
mod socket;
mod statistics;
mod world;

pub use self::{
    authenticator::Authenticator,
    client::{Agent, Answer, Caller, PASSWORD, User, claims_of, patiently, ulid},
    devtools::DevTools,
    hostile::{forged, knock, knock_and_stay, wrong_secret},
    process::{ProcessNode, free_port},
    proxy::{Held, Proxy, late},
    s3::S3Server,
    services::{
        blocked, connect, crowd, db, empty_database, followed_postgres, private_redis, psql,
        redis_client, redis_cluster, redis_link, services, spawn, waiting,
    },
    siteverify::{FaultMode, SECRET as TURNSTILE_SECRET, SiteVerify},
    smtp::{PASSWORD as SMTP_PASSWORD, Secrecy, SmtpServer},
    socket::{Sleeper, Socket},
    statistics::Shift,
    world::{TestNode, World, find_code, nodes, nodes_with},
};
