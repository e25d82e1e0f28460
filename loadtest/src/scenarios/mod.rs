//! What can be measured, one file each.

mod hop;
mod send;
mod sender;

mod login;

use crate::{Options, Result, cluster::Cluster, people::Pair, report::Report};

/// A scenario by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Logins beside what Argon2 alone can do, and what other requests pay for them
    Login,
    /// Durable sends over REST beside what Postgres alone can do
    Send,
    /// From send to receive at a fixed rate, on one node and across two
    Hop,
}

impl Scenario {
    /// Runs it.
    pub async fn run(self, cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
        match self {
            Scenario::Login => Box::pin(login::run(cluster, pairs, options)).await,
            Scenario::Send => Box::pin(send::run(cluster, pairs, options)).await,
            Scenario::Hop => Box::pin(hop::run(cluster, pairs, options)).await,
        }
    }
}
