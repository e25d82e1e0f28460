//! The commands.

pub mod account;
pub mod agent;
pub mod api;
pub mod app;
pub mod approvals;
pub mod ask;
pub mod chat;
pub mod context;
mod doctor;
pub mod file;
pub mod init;
pub mod keys;
mod manual;
pub mod messages;
pub mod receipt;
pub mod search;
pub mod webhook;

use std::process::ExitCode;

use crate::{
    bridge,
    cli::{Cli, Command},
    context::Context,
    failure::Result,
    mcp,
    output::Output,
};

pub async fn run(cli: Cli, output: &Output) -> Result<ExitCode> {
    let at = || Context::of(&cli.global);
    match cli.command {
        Command::Context(command) => context::run(command, &cli.global, output)?,
        Command::Register(command) => account::register(command, &cli.global, output).await?,
        Command::Login(command) => account::login(command, &at()?, output).await?,
        Command::Logout => account::logout(&at()?, output).await?,
        Command::Whoami => account::whoami(&at()?, output).await?,
        Command::Agent(command) => agent::run(command, &at()?, output).await?,
        Command::Init(command) => init::run(command, &at()?, output).await?,
        Command::Chat(command) => Box::pin(chat::run(command, &at()?, output)).await?,
        Command::Send(command) => Box::pin(messages::send(command, &at()?, output)).await?,
        Command::Tail(command) => Box::pin(messages::tail(command, &at()?, output)).await?,
        Command::Stop(command) => messages::stop(command, &at()?, output).await?,
        Command::Inbox(command) => messages::inbox(command, &at()?, output).await?,
        Command::Ask(command) => {
            let at = Context::find(&cli.global)?;
            return Box::pin(ask::run(command, at.as_ref(), output)).await;
        }
        Command::Mcp(command) => {
            let at = Context::find(&cli.global)?;
            Box::pin(mcp::run(command, at.as_ref(), output)).await?;
        }
        Command::Bridge(command) => Box::pin(bridge::run(command, &at()?, output)).await?,
        Command::Approvals(command) => Box::pin(approvals::run(command, &at()?, output)).await?,
        Command::Receipt(command) => Box::pin(receipt::run(command, at, output)).await?,
        Command::Webhook(command) => Box::pin(webhook::run(command, &at()?, output)).await?,
        Command::Keys(command) => Box::pin(keys::run(command, &at()?, output)).await?,
        Command::File(command) => Box::pin(file::run(command, &at()?, output)).await?,
        Command::Search(command) => search::run(command, &at()?, output).await?,
        Command::App(command) => return app::run(command, &cli.global, output).await,
        Command::Api(command) => api::run(command, &at()?, output).await?,
        Command::Limits => account::limits(&at()?, output).await?,
        Command::Doctor => return doctor::run(&at()?, output).await,
        Command::Completions { shell } => manual::completions(shell)?,
        Command::Man { folder } => manual::pages(&folder, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
