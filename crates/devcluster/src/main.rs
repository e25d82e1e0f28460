//! `devcluster`: runs a whole cluster on one machine, for people who try it, for tests and for the
//! load test.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use devcluster::{
    autobahn, clean,
    cluster::{self, Shutdown},
    directories::Directories,
    error::{Context, Result},
    fetch, nats,
    terminal::{say, warn},
};

/// Runs two nodes with a private Postgres and Redis until Ctrl-C
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Folder of everything the cluster needs and leaves behind
    #[arg(long, global = true, default_value = ".dev")]
    dir: PathBuf,
    /// Folder of the fetched programs [default: `packages` in the cluster's folder]
    #[arg(long, global = true)]
    packages: Option<PathBuf>,
    /// The program of the nodes [default: `blindpipe` beside this program]
    #[arg(long)]
    server: Option<PathBuf>,
    /// Do not play the conversation (load tests start from a quiet cluster)
    #[arg(long)]
    no_demo: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Find or fetch Postgres, Redis, the browser of the tests, Prometheus and PgBouncer, and start nothing
    Fetch,
    /// Fetch NATS, for `loadtest peers`, and print the path of its program
    FetchNats,
    /// Remove the folder and everything else that the cluster left behind
    Clean,
    /// Run the Autobahn suite (fetched the first time) against the sockets' code
    Autobahn {
        /// The echo server [default: `examples/echo` beside this program]
        #[arg(long)]
        echo: Option<PathBuf>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    // Two dependencies may each install a provider; the program uses this one.
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warn(error);
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let root = &arguments.dir;
    let prepare = || {
        let directories = Directories::prepare(root)?;
        directories.with_packages(arguments.packages.as_deref())
    };
    match &arguments.command {
        None => {
            let options = cluster::Options {
                root: root.clone(),
                packages: arguments.packages.clone(),
                server: program(arguments.server.as_deref(), "blindpipe")?,
            };
            Box::pin(run_cluster(&options, !arguments.no_demo)).await
        }
        Some(Command::Fetch) => fetch(&prepare()?),
        Some(Command::FetchNats) => {
            say(nats::fetch(&prepare()?)?.display());
            Ok(())
        }
        Some(Command::Clean) => clean(root),
        Some(Command::Autobahn { echo }) => {
            autobahn::run(&prepare()?, &program(echo.as_deref(), "examples/echo")?)
        }
    }
}

async fn run_cluster(options: &cluster::Options, with_demo: bool) -> Result<()> {
    let shutdown = Shutdown::default();
    tokio::select! {
        result = cluster::run(options, with_demo, &shutdown) => result,
        failed = shutdown.listen() => failed.with_context(|| "listen for signals".into()),
    }
}

/// The path of the program: `given`, or the program `name` in this program's folder.
fn program(given: Option<&Path>, name: &str) -> Result<PathBuf> {
    if let Some(given) = given {
        return std::path::absolute(given).with_context(|| format!("find {}", given.display()));
    }
    let own = env::current_exe().with_context(|| "find this program's own file".into())?;
    Ok(own.with_file_name(name))
}
