//! What can be measured, one file each.

mod hop;
mod send;
mod sender;

use crate::{Options, Result, cluster::Cluster, people::Pair, report::Report};

/// A scenario by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Durable sends over REST beside what Postgres alone can do
    Send,
    /// From send to receive at a fixed rate, on one node and across two
    Hop,
}

impl Scenario {
    /// Runs it.
    pub async fn run(self, cluster: &Cluster, pairs: &mut [Pair], options: &Options) -> Result<Report> {
        match self {
            Scenario::Send => Box::pin(send::run(cluster, pairs, options)).await,
            Scenario::Hop => Box::pin(hop::run(cluster, pairs, options)).await,
        }
    }
}
