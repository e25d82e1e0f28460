//! `blindpipe dev`: a whole cluster on one machine, for people who try it and for tests.
//!
//! Finds or fetches Postgres and Redis, starts private instances of both, makes a local certificate, migrates, runs
//! two nodes, plays a short conversation and stays up until Ctrl-C. Everything lives in one folder (`.dev`), nothing
//! needs root, and nothing outlives the launcher. No other part of the program depends on this one; tests use
//! [`services`].

mod autobahn;
pub mod browser;
pub mod certs;
mod cluster;
mod demo;
mod demo_socket;
mod greeting;
mod node;
mod packages;
mod place;
mod ports;
mod postgres;
mod process;
mod published;
mod redis;
mod redis_cluster;
mod secrets;
pub mod services;
mod settings;
mod stop;
#[cfg(test)]
mod supply_chain;
mod terminal;
mod tools;
mod trouble;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

pub use trouble::DevError;

use browser::Browser;
use place::Place;
use services::Lock;
use terminal::{say, warn};
use tools::Tools;
use trouble::Result;

/// Options of `blindpipe dev`.
#[derive(Debug, clap::Args)]
pub struct DevOptions {
    /// Folder of everything the cluster needs and leaves behind.
    #[arg(long, global = true, default_value = ".dev")]
    dir: PathBuf,
    /// Folder of the programs that were fetched, if not `packages` in the cluster's own.
    #[arg(long, global = true)]
    packages: Option<PathBuf>,
    /// Do not play the conversation (load tests start from a quiet cluster).
    #[arg(long)]
    no_demo: bool,
    #[command(subcommand)]
    command: Option<DevCommand>,
}

/// What else `blindpipe dev` can do.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub enum DevCommand {
    /// Find or fetch Postgres, Redis and the browser of the tests, and start nothing.
    Fetch,
    /// Remove the folder and whatever else the cluster left behind.
    Clean,
    /// Run the Autobahn suite (fetched the first time) against the socket code of the nodes.
    Autobahn,
    /// Serve what that suite talks to: an echo over the same handshake, bounds and codec as `/ws`.
    Echo {
        /// Port on 127.0.0.1.
        #[arg(long, default_value_t = 9001)]
        port: u16,
    },
}

/// Runs `blindpipe dev`. Ends with 0 when stopped as asked, with 1 when it could not go on.
pub async fn run(options: DevOptions) -> ExitCode {
    let done = match options.command {
        None => {
            Box::pin(cluster::run(
                &options.dir,
                options.packages.as_deref(),
                !options.no_demo,
            ))
            .await
        }
        Some(DevCommand::Fetch) => fetch(&options.dir, options.packages.as_deref()),
        Some(DevCommand::Clean) => clean(&options.dir),
        Some(DevCommand::Autobahn) => {
            Box::pin(autobahn::run(&options.dir, options.packages.as_deref())).await
        }
        Some(DevCommand::Echo { port }) => autobahn::echo(port).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            warn(trouble);
            ExitCode::FAILURE
        }
    }
}

fn fetch(dev: &Path, packages: Option<&Path>) -> Result<()> {
    let place = Place::at(dev)?.with_packages(packages);
    let tools = Tools::obtain(&place)?;
    for (name, tools) in [("PostgreSQL", &tools.postgres), ("Redis", &tools.redis)] {
        say(format!(
            "{name} {} in {}",
            tools.version,
            tools.bin.display()
        ));
    }
    match Browser::obtain(&place) {
        Ok(browser) => say(browser.describe()),
        // One test needs it, and says so again; all others can go on.
        Err(trouble) => say(not_tried(&trouble.to_string())),
    }
    Ok(())
}

/// What is said when there is no browser, so that nobody overlooks it.
pub fn not_tried(why: &str) -> String {
    let line = "*".repeat(76);
    let why = why.replace('\n', "\n  *  ");
    format!("\n  {line}\n  *  PASSKEYS ARE NOT TRIED IN A REAL BROWSER:\n  *  {why}\n  {line}\n")
}

fn clean(dev: &Path) -> Result<()> {
    // Held until the folder is gone.
    let _locks = if dev.exists() {
        Lock::take_all(dev)?
    } else {
        Vec::new()
    };
    Place::wipe(dev)
}
