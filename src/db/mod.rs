//! Postgres, the truth.
//!
//! Every query has a deadline (`statement_timeout`), and so has every wait for a connection.
//! Statements that senders wait for have a pool of their own, so slow reads cannot starve them.
//!
//! Why: ADR 1, ADR 64.

pub mod batches;
mod connection;
mod inspection;
pub mod migrate;
mod pool;
mod transaction;

pub use self::{
    connection::{Conn, Sql},
    inspection::Inspection,
    pool::{Db, Plans, connect, pin_plans},
    transaction::Tx,
};
