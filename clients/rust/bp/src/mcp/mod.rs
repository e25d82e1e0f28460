//! `bp mcp`: a line to people for every program that speaks the Model Context Protocol.
//!
//! The protocol is a few messages of JSON-RPC for a server that has tools alone, so no library is
//! needed. A client that speaks the stateless protocol of 2026 asks `server/discover` first, and goes
//! on with `initialize` where that is not known.
//!
//! Why: ADR 99.

mod http;
mod pipes;
mod rpc;
mod tools;

use clap::Args;

pub use self::http::is_of_this_machine;

use crate::{
    context::Context,
    failure::Result,
    output::Output,
    questions::{self, Asker},
};

#[derive(Args)]
pub struct Mcp {
    /// The agent that speaks, by name or id, if there are several.
    #[arg(long, env = "BP_AGENT")]
    agent: Option<String>,
    /// The conversation, if the agent has several.
    #[arg(long, value_name = "ID", env = "BP_CONVERSATION")]
    conversation: Option<String>,
    /// Serve streamable HTTP on this port of this machine, in place of standard input and output; 0
    /// takes any.
    #[arg(long, value_name = "PORT")]
    http: Option<u16>,
}

/// The tools of an agent. Nothing is kept here: a ticket is the approval's id.
#[derive(Clone)]
struct Server {
    asker: Asker,
}

pub async fn run(mcp: Mcp, at: Option<&Context>, output: &Output) -> Result<()> {
    let asker = questions::asker(at, mcp.agent.as_deref(), mcp.conversation.as_deref())?;
    let server = Server { asker };
    match mcp.http {
        Some(port) => http::serve(server, port, output).await,
        None => pipes::serve(server, output).await,
    }
}
