//! The programs of Postgres, Redis, the browser and Python: installed ones first, then fetched
//! ones, else a fetch.

mod installed;
mod launchers;

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use self::installed::{find_installed, postgres_folders};
use crate::{
    account::Account,
    autobahn, browser,
    directories::Directories,
    error::{DevError, Result},
    nats,
    packages::{self, Product},
    process::{self, Process},
    terminal::say,
};

/// The oldest usable PostgreSQL.
const MIN_POSTGRES_VERSION: u32 = 15;
/// The oldest usable Redis.
const MIN_REDIS_VERSION: u32 = 7;
/// The oldest usable Chromium: 129 is the first that reads and writes passkeys as JSON.
const MIN_CHROMIUM_VERSION: u32 = 129;
/// The oldest usable Prometheus.
const MIN_PROMETHEUS_VERSION: u32 = 2;
/// The oldest usable PgBouncer, as major and minor version: 1.21 is the first that serves prepared
/// statements to transactions.
const MIN_PGBOUNCER_VERSION: (u32, u32) = (1, 21);
/// A variable that hides installed programs if it is set. It serves to test the download.
const IGNORE_INSTALLED: &str = "BLINDPIPE_DEV_IGNORE_INSTALLED";

/// The programs of one product.
#[derive(Clone, Debug)]
pub struct Toolset {
    /// The folder of the programs.
    pub bin: PathBuf,
    /// Folders of a fetched package's libraries; none if it is installed.
    libraries: Option<OsString>,
    /// The loader of a fetched package that brings a C runtime.
    loader: Option<PathBuf>,
    /// The major version.
    pub major: u32,
    /// The version in the program's own words.
    pub version: String,
}

/// The programs that the dev cluster runs.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `postgres`, `initdb`, `psql`, `pgbench`…
    pub postgres: Toolset,
    /// `redis-server`, `redis-cli`…
    pub redis: Toolset,
}

impl Toolset {
    /// A command for a program of the toolset, run as `account`.
    pub fn command(&self, program: &str, death_signal: &'static str, account: &Account) -> Command {
        let program = self.bin.join(program);
        let mut command = match (&self.loader, &self.libraries) {
            // The variable would give the newer C runtime to the programs of the machine as well.
            (Some(loader), Some(libraries)) => {
                let mut command = process::command(loader, death_signal);
                command.arg("--library-path").arg(libraries).arg(program);
                command
            }
            (_, libraries) => {
                let mut command = process::command(&program, death_signal);
                command.envs(libraries.iter().map(|path| ("LD_LIBRARY_PATH", path)));
                command
            }
        };
        // The launcher reads messages, and the caller's variables must not set options of Postgres.
        command
            .env("LC_ALL", "C.UTF-8")
            .env_remove("PGOPTIONS")
            .env_remove("PGDATA")
            .current_dir("/");
        account.apply_to(&mut command);
        command
    }

    /// Asks `server` in `bin` for its version. None if it does not run or is older than `at_least`.
    fn probe(
        bin: &Path,
        libraries: Option<OsString>,
        loader: Option<PathBuf>,
        server: &str,
        at_least: u32,
        account: &Account,
    ) -> Option<Self> {
        let mut tools = Toolset {
            bin: bin.to_owned(),
            libraries,
            loader,
            major: 0,
            version: String::new(),
        };
        if !bin.join(server).exists() {
            return None;
        }
        let mut ask = tools.command(server, "TERM", account);
        ask.arg("--version");
        let output = Process::output(ask)
            .ok()
            .filter(|output| output.status.success())?;
        // Python 2 prints its version to standard error.
        tools.version = parse_version(&String::from_utf8_lossy(
            &[output.stdout, output.stderr].concat(),
        ))?;
        tools.major = tools.version.split('.').next()?.parse().ok()?;
        (tools.major >= at_least).then_some(tools)
    }

    fn fetched(packages: &Path, product: Product, account: &Account) -> Option<Self> {
        let root = packages::unpacked(packages, product);
        let libraries = env::join_paths(packages::library_folders(&root)).ok();
        match product {
            Product::Postgres(at_least) => {
                let bins = postgres_folders(&root.join("usr/lib/postgresql"));
                bins.iter().find_map(|bin| {
                    Toolset::probe(bin, libraries.clone(), None, "postgres", at_least, account)
                })
            }
            Product::Redis => Toolset::probe(
                &root.join("usr/bin"),
                libraries,
                None,
                "redis-server",
                MIN_REDIS_VERSION,
                account,
            ),
            Product::Browser => {
                let bin = root.join("usr/lib/chromium");
                Toolset::probe(
                    &bin,
                    libraries,
                    None,
                    browser::PROGRAM,
                    MIN_CHROMIUM_VERSION,
                    account,
                )
            }
            Product::Prometheus => Toolset::probe(
                &root.join("usr/bin"),
                libraries,
                None,
                "promtool",
                MIN_PROMETHEUS_VERSION,
                account,
            ),
            Product::Python2 => Toolset::probe(
                &root.join("usr/bin"),
                libraries,
                None,
                autobahn::PYTHON,
                2,
                account,
            ),
            Product::PgBouncer => Toolset::probe_pgbouncer(
                &root.join("usr/sbin"),
                libraries,
                packages::loader(&root),
                account,
            ),
            Product::Nats => ["usr/bin", "usr/sbin"].iter().find_map(|bin| {
                Toolset::probe(&root.join(bin), None, None, nats::PROGRAM, 2, account)
            }),
        }
    }

    fn probe_pgbouncer(
        bin: &Path,
        libraries: Option<OsString>,
        loader: Option<PathBuf>,
        account: &Account,
    ) -> Option<Self> {
        let tools = Toolset::probe(bin, libraries, loader, "pgbouncer", 1, account)?;
        let mut parts = tools.version.split('.').map(|part| part.parse().ok());
        let version = (parts.next()??, parts.next()??);
        (version >= MIN_PGBOUNCER_VERSION).then_some(tools)
    }

    /// Finds or fetches one product.
    pub fn obtain(directories: &Directories, product: Product) -> Result<Self> {
        let installed = if env::var_os(IGNORE_INSTALLED).is_some() {
            None
        } else {
            find_installed(product, &directories.account)
        };
        if let Some(tools) = installed
            .or_else(|| Toolset::fetched(&directories.packages, product, &directories.account))
        {
            return Ok(tools);
        }
        let (name, advice) = match product {
            Product::Postgres(_) => ("PostgreSQL 15 or newer", "Debian: apt install postgresql"),
            Product::Redis => ("Redis 7 or newer", "Debian: apt install redis-server"),
            Product::Browser => (
                "A browser for the tests",
                "Debian: apt install chromium-headless-shell",
            ),
            Product::Prometheus => ("Prometheus", "Debian: apt install prometheus"),
            Product::Python2 => ("Python 2.7", "it is in no current system"),
            Product::PgBouncer => (
                "PgBouncer 1.21 or newer",
                "Debian 13: apt install pgbouncer",
            ),
            Product::Nats => ("NATS", "Debian 13: apt install nats-server"),
        };
        say(format!(
            "{name} is not installed: fetching it into {} (nothing is installed, no root needed).",
            directories.packages.display()
        ));
        // The folder is there but did not work: it is damaged, or belongs to another release of the
        // system.
        let _ = fs::remove_dir_all(packages::unpacked(&directories.packages, product));
        let missing = |why: String| {
            DevError::new(format!(
                "{name} is missing and could not be fetched: {why}\nInstall it ({advice}) and try again."
            ))
        };
        packages::fetch(&directories.packages, product)
            .map_err(|error| missing(error.to_string()))?;
        Toolset::fetched(&directories.packages, product, &directories.account).ok_or_else(|| {
            missing(
                "what this system's package sources offer is too old or does not run here".into(),
            )
        })
    }
}

impl Tools {
    /// Finds or fetches both, and writes a launcher for each handy client into `.dev/bin`.
    pub fn obtain(directories: &Directories) -> Result<Self> {
        let tools = Tools {
            postgres: Toolset::obtain(directories, Product::Postgres(MIN_POSTGRES_VERSION))?,
            redis: Toolset::obtain(directories, Product::Redis)?,
        };
        tools.write_launchers(&directories.root.join("bin"))?;
        Ok(tools)
    }
}

/// The version in the output of `--version`: `postgres (PostgreSQL) 15.20 (Debian …)`,
/// `Redis server v=7.0.15 sha=…`.
fn parse_version(text: &str) -> Option<String> {
    let words = text
        .split_whitespace()
        .map(|word| word.strip_prefix("v").unwrap_or(word))
        .map(|word| word.strip_prefix("=").unwrap_or(word));
    let is_version = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    // A development release has a version such as 18beta1.
    let version = words.into_iter().find(is_version)?;
    Some(
        version
            .split(|c: char| c != '.' && !c.is_ascii_digit())
            .next()?
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let version = |text| parse_version(text);
        assert_eq!(
            version("postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)").as_deref(),
            Some("15.20")
        );
        assert_eq!(
            version("postgres (PostgreSQL) 19beta1").as_deref(),
            Some("19")
        );
        assert_eq!(
            version("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64")
                .as_deref(),
            Some("7.0.15")
        );
        assert_eq!(version("command not found"), None);
    }
}
