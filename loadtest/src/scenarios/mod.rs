//! The scenarios, one file each.

mod frames;
mod history;
pub mod hop;
mod limiter;
mod login;
pub mod outside;
mod peers;
mod purge;
mod scaleout;
mod search;
mod send;
pub mod sender;
mod size;
mod toolcalls;
mod upload;
mod webhooks;
mod year;

// These need thousands of sockets.
mod fanout;
mod idle;
mod nodes;
mod popular;
mod slow;
mod storm;
mod sweep;

use crate::{
    Options, Result,
    cluster::{Cluster, Node},
    fixtures::Pair,
    report::Report,
};

/// A scenario by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Logins beside what Argon2 alone can do, and what other requests pay for them
    Login,
    /// Durable sends over REST beside what Postgres alone can do
    Send,
    /// Durable sends over sockets with several under way, beside what Postgres alone can do
    Frames,
    /// Durable sends beside those of NATS JetStream
    Peers,
    /// From send to receive at a fixed rate, on one node and across two, beside the floor and
    /// Socket.IO
    Hop,
    /// A thousand users who write to one agent, beside the same load spread over eight
    Popular,
    /// A send to a group of which everybody listens, beside the floor and Socket.IO
    Fanout,
    /// Memory and connecting of sockets that are silent
    Idle,
    /// Agents' sockets that connect, are silent, and get a message (a release elsewhere)
    Sockets,
    /// A node is killed: how fast are its clients back on another?
    Storm,
    /// Clients that never read beside as many that do
    Slow,
    /// How much of a send is its limits
    Limiter,
    /// Uploads beside a plain write, hash and sync, and downloads beside a bare file server
    Upload,
    /// Deliveries of one worker beside a bare loop of POSTs with the same client, and how they grow
    /// with the number of agents
    Webhooks,
    /// The work of silent sockets for Postgres and Redis, and of a send to a group for Redis
    Sweep,
    /// The sweep and the backplane of a hundred nodes with simulated sockets
    Nodes,
    /// Many clients at once while nodes, Postgres and Redis are harmed: is what they saw sound?
    History,
    /// The same for --minutes, round after round
    Soak,
    /// From an agent's call of a tool to its answer, beside a message and its reply
    Toolcalls,
    /// Search and the access log at two sizes
    Search,
    /// Sends while many rows are purged
    Purge,
    /// Durable sends on one node to four, in many conversations and in a single one
    Scaleout,
    /// Sends, polls, histories and connects beside many stored messages
    Size,
    /// A year of messages in small: the sizes that retention and vacuum leave behind
    Year,
}

impl Scenario {
    /// Runs the scenario.
    pub async fn run(
        self,
        cluster: &Cluster,
        pairs: &mut [Pair],
        options: &Options,
    ) -> Result<Report> {
        match self {
            Scenario::Login => Box::pin(login::run(cluster, pairs, options)).await,
            Scenario::Send => Box::pin(send::run(cluster, pairs, options)).await,
            Scenario::Frames => Box::pin(frames::run(cluster, pairs, options)).await,
            Scenario::Peers => Box::pin(peers::run(cluster, pairs, options)).await,
            Scenario::Limiter => Box::pin(limiter::run(cluster, pairs, options)).await,
            Scenario::Upload => Box::pin(upload::run(cluster, pairs, options)).await,
            Scenario::Hop => Box::pin(hop::run(cluster, pairs, options)).await,
            Scenario::Popular => Box::pin(popular::run(cluster, options)).await,
            Scenario::Fanout => Box::pin(fanout::run(cluster, options)).await,
            Scenario::Idle => Box::pin(idle::run(cluster, options)).await,
            Scenario::Sockets => Err("sockets needs --base-url: idle measures a cluster".into()),
            Scenario::Storm => Box::pin(storm::run(cluster, options)).await,
            Scenario::Sweep => Box::pin(sweep::run(cluster, options)).await,
            Scenario::Nodes => Box::pin(nodes::run(cluster, options)).await,
            Scenario::Slow => Box::pin(slow::run(cluster, options)).await,
            Scenario::Webhooks => Box::pin(webhooks::run(cluster, pairs, options)).await,
            Scenario::History => Box::pin(history::run(cluster, options)).await,
            Scenario::Soak => Box::pin(history::soak(cluster, options)).await,
            Scenario::Toolcalls => Box::pin(toolcalls::run(cluster, pairs, options)).await,
            Scenario::Search => Box::pin(search::run(cluster, options)).await,
            Scenario::Purge => Box::pin(purge::run(cluster, options)).await,
            Scenario::Scaleout => Box::pin(scaleout::run(cluster, pairs, options)).await,
            Scenario::Size => Box::pin(size::run(cluster, pairs, options)).await,
            Scenario::Year => Box::pin(year::run(cluster, options)).await,
        }
    }

    /// Runs the scenario against a release elsewhere, from its first base URL to its last.
    pub async fn run_outside(
        self,
        nodes: &[Node],
        pairs: &mut [Pair],
        options: &Options,
    ) -> Result<Report> {
        match self {
            Scenario::Hop => Box::pin(hop::run_release(nodes, pairs, options)).await,
            Scenario::Send => Box::pin(outside::send(nodes, pairs, options)).await,
            Scenario::Sockets => Box::pin(outside::sockets(nodes, pairs, options)).await,
            Scenario::Storm => Box::pin(outside::storm(nodes, pairs, options)).await,
            Scenario::Fanout => Box::pin(outside::fanout(nodes, pairs, options)).await,
            other => Err(format!("{other:?} needs a cluster of its own").into()),
        }
    }

    /// Whether a release elsewhere shows what it measures.
    pub fn works_outside(self) -> bool {
        use Scenario::{Fanout, Hop, Send, Sockets, Storm};
        matches!(self, Hop | Send | Sockets | Storm | Fanout)
    }

    /// Whether it needs users with agents, created through the API.
    pub fn needs_people(self) -> bool {
        matches!(
            self,
            Scenario::Login
                | Scenario::Send
                | Scenario::Frames
                | Scenario::Peers
                | Scenario::Hop
                | Scenario::Limiter
                | Scenario::Toolcalls
                | Scenario::Webhooks
                | Scenario::Upload
                | Scenario::Scaleout
                | Scenario::Size
        )
    }
}
