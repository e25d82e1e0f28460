//! Finds Postgres and Redis: installed ones first, then those fetched before, else it fetches them.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    autobahn, browser,
    packages::{self, Wanted},
    place::{Account, Place, make_folder},
    process::{self, Process},
    terminal::say,
    trouble::{Context, DevError, Result},
};

/// The oldest PostgreSQL that will do.
const MIN_POSTGRES_VERSION: u32 = 15;
/// The oldest Redis that will do.
const MIN_REDIS_VERSION: u32 = 7;
/// The oldest Chromium that will do: pages read and write passkeys as JSON from 129 on.
const MIN_CHROMIUM_VERSION: u32 = 129;
/// Set to anything, makes the search pass over what is installed; for trying the download.
const IGNORE_INSTALLED: &str = "BLINDPIPE_DEV_IGNORE_INSTALLED";

/// The programs of one product.
#[derive(Clone, Debug)]
pub struct Toolset {
    /// The folder of the programs.
    pub bin: PathBuf,
    /// For fetched packages: where their libraries are.
    libraries: Option<OsString>,
    /// The major version.
    pub major: u32,
    /// The version as the program tells it.
    pub version: String,
}

/// What the dev cluster runs on.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `postgres`, `initdb`, `psql`, `pgbench`…
    pub postgres: Toolset,
    /// `redis-server`, `redis-cli`…
    pub redis: Toolset,
}

impl Toolset {
    /// A command for one of the programs, run as `account`.
    pub fn command(&self, program: &str, death_signal: &'static str, account: &Account) -> Command {
        let mut command = process::command(&self.bin.join(program), death_signal);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        // Messages are read by the launcher, and what is around must not set options of Postgres.
        command
            .env("LC_ALL", "C.UTF-8")
            .env_remove("PGOPTIONS")
            .env_remove("PGDATA")
            .current_dir("/");
        account.lend_to(&mut command);
        command
    }

    /// Asks `server` in `bin` for its version; none if it does not run or is older than `at_least`.
    fn probe(
        bin: &Path,
        libraries: Option<OsString>,
        server: &str,
        at_least: u32,
        account: &Account,
    ) -> Option<Self> {
        let mut tools = Toolset {
            bin: bin.to_owned(),
            libraries,
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
        // Python 2 says it on the other output.
        tools.version = parse_version(&String::from_utf8_lossy(
            &[output.stdout, output.stderr].concat(),
        ))?;
        tools.major = tools.version.split('.').next()?.parse().ok()?;
        (tools.major >= at_least).then_some(tools)
    }

    fn fetched(packages: &Path, wanted: Wanted, account: &Account) -> Option<Self> {
        let root = packages::unpacked(packages, wanted);
        let libraries = env::join_paths(packages::library_folders(&root)).ok();
        match wanted {
            Wanted::Postgres(at_least) => {
                let bins = postgres_folders(&root.join("usr/lib/postgresql"));
                bins.iter().find_map(|bin| {
                    Toolset::probe(bin, libraries.clone(), "postgres", at_least, account)
                })
            }
            Wanted::Redis => Toolset::probe(
                &root.join("usr/bin"),
                libraries,
                "redis-server",
                MIN_REDIS_VERSION,
                account,
            ),
            Wanted::Browser => {
                let bin = root.join("usr/lib/chromium");
                Toolset::probe(
                    &bin,
                    libraries,
                    browser::PROGRAM,
                    MIN_CHROMIUM_VERSION,
                    account,
                )
            }
            Wanted::Python2 => Toolset::probe(
                &root.join("usr/bin"),
                libraries,
                autobahn::PYTHON,
                2,
                account,
            ),
        }
    }

    /// Finds or fetches one product.
    pub fn obtain(place: &Place, wanted: Wanted) -> Result<Self> {
        let installed = if env::var_os(IGNORE_INSTALLED).is_some() {
            None
        } else {
            find_installed(wanted, &place.account)
        };
        if let Some(tools) =
            installed.or_else(|| Toolset::fetched(&place.packages, wanted, &place.account))
        {
            return Ok(tools);
        }
        let (name, advice) = match wanted {
            Wanted::Postgres(_) => ("PostgreSQL 15 or newer", "Debian: apt install postgresql"),
            Wanted::Redis => ("Redis 7 or newer", "Debian: apt install redis-server"),
            Wanted::Browser => (
                "A browser for the tests",
                "Debian: apt install chromium-headless-shell",
            ),
            Wanted::Python2 => ("Python 2.7", "it is in no current system"),
        };
        say(format!(
            "{name} is not installed: fetching it into {} (nothing is installed, no root needed).",
            place.packages.display()
        ));
        // What is there did not run: a half-removed folder or one made under another release of the system.
        let _ = fs::remove_dir_all(packages::unpacked(&place.packages, wanted));
        let missing = |why: String| {
            DevError::new(format!(
                "{name} is missing and could not be fetched: {why}\nInstall it ({advice}) and try again."
            ))
        };
        packages::fetch(&place.packages, wanted).map_err(|trouble| missing(trouble.to_string()))?;
        Toolset::fetched(&place.packages, wanted, &place.account).ok_or_else(|| {
            missing(
                "what this system's package sources offer is too old or does not run here".into(),
            )
        })
    }
}

impl Tools {
    /// Finds or fetches both, and writes a launcher for each handy client into `.dev/bin`.
    pub fn obtain(place: &Place) -> Result<Self> {
        let postgres = Toolset::obtain(place, Wanted::Postgres(MIN_POSTGRES_VERSION))?;
        let redis = Toolset::obtain(place, Wanted::Redis)?;
        let bin = place.dev.join("bin");
        make_folder(&bin, 0o755)?;
        for (tools, program) in [
            (&postgres, "psql"),
            (&postgres, "pgbench"),
            (&postgres, "pg_dump"),
            (&redis, "redis-cli"),
        ] {
            write_launcher(&bin, tools, program)?;
        }
        Ok(Tools { postgres, redis })
    }
}

/// `.dev/bin/<program>`: runs the program that belongs to the services, with its libraries.
fn write_launcher(bin: &Path, tools: &Toolset, program: &str) -> Result<()> {
    let quote = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let target = tools.bin.join(program);
    let file = bin.join(program);
    if !target.exists() {
        let _ = fs::remove_file(file);
        return Ok(());
    }
    let libraries = tools
        .libraries
        .as_ref()
        .map(|libraries| format!("LD_LIBRARY_PATH={} ", quote(&libraries.to_string_lossy())));
    let script = format!(
        "#!/bin/sh\n{}exec {} \"$@\"\n",
        libraries.unwrap_or_default(),
        quote(&target.to_string_lossy())
    );
    // Replaced as a whole: another process may be running it.
    let temporary = bin.join(format!(".{program}.{}", std::process::id()));
    fs::write(&temporary, script).doing(|| format!("write {}", temporary.display()))?;
    fs::set_permissions(
        &temporary,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .doing(|| "make a script executable".into())?;
    fs::rename(&temporary, &file).doing(|| format!("write {}", file.display()))
}

fn find_installed(wanted: Wanted, account: &Account) -> Option<Toolset> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    // An ordinary user's PATH lacks these.
    folders
        .extend(["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin"].map(PathBuf::from));
    match wanted {
        Wanted::Postgres(at_least) => {
            // A link to the server stands for the folder where its other programs are.
            let real = |folder: &PathBuf| {
                Some(
                    folder
                        .join("postgres")
                        .canonicalize()
                        .ok()?
                        .parent()?
                        .to_owned(),
                )
            };
            folders = folders
                .iter()
                .filter_map(real)
                .filter(|folder| folder.join("initdb").exists())
                .collect();
            folders.extend(postgres_folders(Path::new("/usr/lib/postgresql")));
            folders
                .iter()
                .find_map(|bin| Toolset::probe(bin, None, "postgres", at_least, account))
        }
        Wanted::Redis => folders
            .iter()
            .find_map(|bin| Toolset::probe(bin, None, "redis-server", MIN_REDIS_VERSION, account)),
        Wanted::Browser => {
            folders.push("/usr/lib/chromium".into());
            folders.iter().find_map(|bin| {
                Toolset::probe(bin, None, browser::PROGRAM, MIN_CHROMIUM_VERSION, account)
            })
        }
        // A suite is put into it: always one of our own.
        Wanted::Python2 => None,
    }
}

/// `<root>/<major>/bin`, the newest first.
fn postgres_folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut majors: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    majors.sort_unstable_by(|a, b| b.cmp(a));
    majors
        .iter()
        .map(|major| root.join(major.to_string()).join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect()
}

/// The version in what `--version` prints: `postgres (PostgreSQL) 15.20 (Debian …)`, `Redis server v=7.0.15 sha=…`.
fn parse_version(text: &str) -> Option<String> {
    let words = text
        .split_whitespace()
        .map(|word| word.strip_prefix("v=").unwrap_or(word));
    let is_version = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    // A development release is called 18beta1, say.
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
