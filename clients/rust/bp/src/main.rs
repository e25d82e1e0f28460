//! `bp`, the command line of blindpipe.

mod bridge;
mod cli;
mod commands;
mod context;
mod credentials;
mod failure;
mod files;
mod forward;
mod human;
mod mcp;
mod output;
mod prompt;
mod questions;
mod show;
mod stop;
mod to;

use std::{env, process::ExitCode};

use clap::Parser;

use self::{
    cli::Cli,
    failure::{Exit, Failure},
    output::Output,
};

/// Help, the version, or what does not fit. There are no options yet, so `--json` is looked for.
fn told(error: &clap::Error) -> ExitCode {
    let is_fault = error.use_stderr();
    if is_fault && env::args_os().any(|argument| argument == "--json") {
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        return Failure::usage(text.trim_end()).tell(&Output::new(true));
    }
    error.print().ok();
    if is_fault {
        Exit::Usage.into()
    } else {
        ExitCode::SUCCESS
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            return told(&error);
        }
    };
    // `bp` says itself what there is to say: standard error is JSON where that was asked for.
    tracing::subscriber::set_global_default(tracing::subscriber::NoSubscriber::new()).ok();
    let output = Output::new(cli.global.json);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return Failure::from(error).tell(&output),
    };
    let done = runtime.block_on(Box::pin(commands::run(cli, &output)));
    // A thread may still wait for the terminal.
    runtime.shutdown_background();
    match done {
        Ok(exit) => exit,
        Err(failure) => failure.tell(&output),
    }
}
