//! The server: `serve`, `worker`, `migrate`, `erase`, `settings`, `healthcheck`, `doctor`, `audit`,
//! `loadtest-accounts`.

use std::process::ExitCode;

use blindpipe::{
    clock::Clock,
    config::{self, MigrationUrls},
    db::migrate,
    doctor, documents,
    features::{access_log::verify, keys::erase},
    healthcheck,
    load_accounts::{self, LoadAccounts},
    node::{self, Node},
    telemetry::{self, Exporter},
};
use chrono::NaiveDate;
use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use secrecy::{ExposeSecret, SecretString};
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A messaging backend for people and agents: a blind pipe for end-to-end encrypted conversations.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one node until SIGTERM
    #[command(after_long_help = config::as_help())]
    Serve,
    /// Run deliveries of webhooks and jobs until SIGTERM, without a public listener
    #[command(after_long_help = config::as_help())]
    Worker,
    /// Bring the schema up to date, as the role of MIGRATE_DATABASE_URL, and grant the role of
    /// DATABASE_URL the rights that nodes need
    Migrate,
    /// Erase the key backups of accounts that were deleted 7 days ago, as the role of
    /// ERASE_DATABASE_URL; to be run once a day
    Erase,
    /// Print every setting as a Markdown table
    Settings,
    /// Print the OpenAPI document of the routes
    Openapi,
    /// Print the AsyncAPI document of /ws
    Asyncapi,
    /// Print the durable events with the schemas of their data
    EventTypes,
    /// Check the records that nobody may change
    #[command(subcommand)]
    Audit(Audit),
    /// Check what the settings of a node need: its machine, Postgres, Redis, mail, the object store;
    /// exit 0 if there is no fault, 1 if there is any
    #[command(after_long_help = config::as_help())]
    Doctor,
    /// Make the accounts of a load test against this release, or remove them without a trace, with
    /// the settings of a node and, to remove, MIGRATE_DATABASE_URL
    LoadtestAccounts(LoadAccounts),
    /// Ask the admin listener at ADMIN_ADDR whether the node is ready; exit 0 if it is, 1 if not
    Healthcheck {
        /// Ask this address instead, for example of another machine; http only
        #[arg(long)]
        url: Option<String>,
    },
}

#[derive(Subcommand)]
enum Audit {
    /// Verify the chains of the access log of DATABASE_URL; exit 0 if nothing was changed, dropped
    /// or inserted, 1 if anything was
    Verify {
        /// Compute the digest of this day too, such as 2026-01-31, to compare it with the published one
        #[arg(long)]
        day: Option<NaiveDate>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    // Two dependencies may each install a provider; the node uses this one.
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
    let outcome = match Arguments::parse().command {
        Command::Serve => serve(false).await,
        Command::Worker => serve(true).await,
        Command::Settings => print(&config::as_markdown()),
        Command::Openapi => print(&documents::openapi()),
        Command::Asyncapi => print(&documents::asyncapi()),
        Command::EventTypes => print(&documents::event_types()),
        Command::Migrate => apply_migrations().await,
        Command::Erase => erase().await,
        Command::LoadtestAccounts(wanted) => manage_load_accounts(&wanted).await,
        Command::Healthcheck { url } => check_health(url).await,
        Command::Doctor => Box::pin(examine()).await,
        Command::Audit(Audit::Verify { day }) => verify_access_log(day).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!(
                operation = "process",
                cause = %failure,
                remedy = "the process ends",
                "stopped"
            );
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Raises the limit on open files to the hard limit. Sockets are files, and the usual soft limit is
/// a thousand.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .ok();
}

async fn serve(is_worker: bool) -> Outcome {
    raise_file_limit();
    let config = node::read_settings(|name| std::env::var(name).ok())
        .inspect_err(|_| telemetry::start("info", None));
    let config = config.map_err(|faults| faults.to_string())?;
    let exporter = Exporter::new(&config).inspect_err(|_| telemetry::start("info", None))?;
    telemetry::start(&config.log, exporter.as_ref());
    telemetry::log_panics();
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let node = if is_worker {
        Node::start_worker(config, Clock::default()).await?
    } else {
        Node::start(config, Clock::default()).await?
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    node.drain().await;
    if let Some(exporter) = exporter {
        exporter.stop().await;
    }
    Ok(())
}

async fn check_health(url: Option<String>) -> Outcome {
    telemetry::start("info", None);
    if let Some(url) = url {
        return Ok(healthcheck::ask(&url).await?);
    }
    let admin = config::Config::read_admin_address(|name| std::env::var(name).ok());
    let admin = admin.map_err(|faults| faults.to_string())?;
    Ok(healthcheck::run(admin).await?)
}

fn print(document: &str) -> Outcome {
    use std::io::Write;
    Ok(std::io::stdout().write_all(document.as_bytes())?)
}

async fn verify_access_log(day: Option<NaiveDate>) -> Outcome {
    telemetry::start("info", None);
    let url: SecretString = std::env::var("DATABASE_URL")
        .map_err(|_| "DATABASE_URL: must be set")?
        .into();
    let report = verify::at(url.expose_secret(), day).await?;
    print(&report.to_string())?;
    if report.faults.is_empty() {
        Ok(())
    } else {
        Err("the access log was tampered with".into())
    }
}

async fn examine() -> Outcome {
    // The report says everything, and the log would say parts of it again.
    telemetry::start("off", None);
    let report = Box::pin(doctor::examine(|name| std::env::var(name).ok())).await;
    print(&report.to_string())?;
    match report.count(doctor::Grade::Fault) {
        0 => Ok(()),
        _ => Err("the deployment has faults".into()),
    }
}

async fn apply_migrations() -> Outcome {
    telemetry::start("info", None);
    let urls = MigrationUrls::read(|name| std::env::var(name).ok());
    let MigrationUrls {
        owner,
        serving,
        erasing,
    } = urls.map_err(|faults| faults.to_string())?;
    let applied = migrate::run_at(owner.expose_secret()).await?;
    match serving {
        Some(serving) => {
            let role = migrate::role_of(serving.expose_secret())?;
            migrate::grant_at(owner.expose_secret(), &role).await?;
        }
        None => tracing::warn!(
            operation = "migrate",
            remedy = "set MIGRATE_DATABASE_URL",
            "one role owns the tables and serves"
        ),
    }
    if let Some(erasing) = erasing {
        let role = migrate::role_of(erasing.expose_secret())?;
        migrate::grant_erasure_at(owner.expose_secret(), &role).await?;
    }
    tracing::info!(applied, "the schema is up to date");
    Ok(())
}

async fn manage_load_accounts(wanted: &LoadAccounts) -> Outcome {
    telemetry::start("warn", None);
    let said = Box::pin(load_accounts::run(wanted, |name| std::env::var(name).ok())).await?;
    print(&said)
}

async fn erase() -> Outcome {
    telemetry::start("info", None);
    let url = config::read_erase_url(|name| std::env::var(name).ok());
    let url = url.map_err(|faults| faults.to_string())?;
    let accounts = erase::at(url.expose_secret()).await?;
    tracing::info!(accounts, "the key backups of deleted accounts are erased");
    Ok(())
}
