//! `bp bridge`: agents of other protocols.

mod client;
mod push;
mod served;
mod server;
mod speaker;
mod wire;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use crate::{context::Context, credentials, failure::Result, output::Output, prompt};

#[derive(Subcommand)]
pub enum Bridge {
    /// Bring an agent of A2A 1.0 into conversations, or serve an agent to A2A clients.
    A2a(A2a),
}

#[derive(Args)]
#[command(group(ArgGroup::new("way").required(true).args(["address", "serve"])))]
pub struct A2a {
    /// The address of an A2A agent. It speaks in the conversations of `--agent`.
    address: Option<String>,
    /// A file with the bearer token that the A2A agent wants.
    #[arg(long, value_name = "FILE", requires = "address")]
    token_file: Option<PathBuf>,
    /// The agent that speaks, by name or id, if there are several.
    #[arg(long, env = "BP_AGENT")]
    agent: Option<String>,
    /// Serve this agent, by name or id, to A2A clients of this machine, in the person's name.
    #[arg(long, value_name = "AGENT")]
    serve: Option<String>,
    /// The port to serve on; 0 takes any.
    #[arg(long, default_value_t = 0, requires = "serve")]
    port: u16,
    /// Push notifications may go to receivers on this machine too, also without TLS: for development.
    #[arg(long, requires = "serve")]
    push_loopback: bool,
}

pub async fn run(command: Bridge, at: &Context, output: &Output) -> Result<()> {
    let Bridge::A2a(a2a) = command;
    if let Some(agent) = &a2a.serve {
        return Box::pin(server::serve(agent, &a2a, at, output)).await;
    }
    let agent = a2a.agent.as_deref();
    // A refused token is told at once. The call also readies TLS for the other one.
    credentials::acting(at, agent)?.build().check().await?;
    let address = a2a.address.as_deref().unwrap_or_default();
    let token = a2a.token_file.as_deref().map(prompt::secret_from);
    let remote = client::Remote::discover(address, token.transpose()?).await?;
    let builder = credentials::acting(at, agent)?;
    Box::pin(speaker::speak(remote, builder, output)).await
}
