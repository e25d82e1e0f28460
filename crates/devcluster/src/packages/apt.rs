//! apt with a private state: its own lists and cache, and no knowledge of installed packages.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    Product,
    selection::{Package, newest_postgres},
};
use crate::{
    browser,
    error::{Context, DevError, Result},
    files::make_folder,
    process::{self, Process},
};

/// Python 2.7 as far as pip needs it. The first package has the interpreter.
const PYTHON2: [&str; 6] = [
    "python2.7-minimal",
    "libpython2.7-minimal",
    "libpython2.7-stdlib",
    "python-pip-whl",
    "python-pkg-resources",
    "python-setuptools",
];
/// PgBouncer with all that it links, because its release is newer than the machine's may be.
const PGBOUNCER: [&str; 14] = [
    "pgbouncer",
    "libaudit1",
    "libc6",
    "libcap-ng0",
    "libcap2",
    "libcares2",
    "libcrypt1",
    "libevent-2.1-7t64",
    "libgcc-s1",
    "libpam0g",
    "libssl3t64",
    "libsystemd0",
    "libzstd1",
    "zlib1g",
];
/// The keys that sign a release other than the machine's.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

pub struct Apt {
    folder: PathBuf,
    /// Options that name a release other than the machine's.
    sources: Vec<String>,
}

impl Apt {
    pub fn new(folder: &Path, release: Option<&str>) -> Result<Self> {
        if !Command::new("apt-get")
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
        {
            return Err(DevError::new(
                "there is no apt-get here to fetch Debian packages with",
            ));
        }
        let _ = fs::remove_dir_all(folder);
        for name in ["state/lists/partial", "cache/archives/partial", "archives"] {
            make_folder(&folder.join(name), 0o755)?;
        }
        fs::write(folder.join("state/status"), "").with_context(|| "write apt's state".into())?;
        let mut sources = Vec::new();
        if let Some(release) = release {
            let list = folder.join("sources.list");
            let text = format!("deb [signed-by={KEYRING}] {} {release} main\n", mirror()?);
            fs::write(&list, text).with_context(|| "write apt's sources".into())?;
            sources.push(format!("Dir::Etc::sourcelist={}", list.display()));
            sources.push("Dir::Etc::sourceparts=/dev/null".to_owned());
        }
        Ok(Apt {
            folder: folder.to_owned(),
            sources,
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = process::command(Path::new(program), "TERM");
        let option =
            |name: &str, path: &str| format!("{name}={}", self.folder.join(path).display());
        for setting in [
            option("Dir::State", "state"),
            option("Dir::State::status", "state/status"),
            option("Dir::Cache", "cache"),
            // Only the package index is fetched: no translations, no icons, no programs that hook
            // into an update.
            "Acquire::Languages=none".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "Acquire::Retries=2".into(),
            "Acquire::http::Timeout=20".into(),
            "Acquire::https::Timeout=20".into(),
            // As root, apt would switch to a user who cannot write here.
            "APT::Sandbox::User=root".into(),
            "Debug::NoLocking=1".into(),
        ] {
            command.arg("-o").arg(setting);
        }
        command.args(self.sources.iter().flat_map(|setting| ["-o", setting]));
        command
            .env("LC_ALL", "C.UTF-8")
            .current_dir(self.folder.join("archives"));
        command
    }

    pub fn update(&self) -> Result<()> {
        let mut update = self.command("apt-get");
        update.arg("update");
        // An unreachable third-party source fails the whole update, and any package list is enough
        // to go on.
        let output = Process::output(update)?;
        let lists = fs::read_dir(self.folder.join("state/lists"))
            .into_iter()
            .flatten()
            .flatten();
        if lists
            .into_iter()
            .any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
        {
            return Ok(());
        }
        Err(DevError::new(format!(
            "the package lists could not be fetched (is there a network?):\n{}",
            output_tail(&output)
        )))
    }

    pub fn core_packages(&self, product: Product) -> Result<Vec<String>> {
        let at_least = match product {
            Product::Postgres(at_least) => at_least,
            Product::Redis => return Ok(vec!["redis-server".into(), "redis-tools".into()]),
            Product::Browser => {
                let names = [browser::PROGRAM, "chromium-common", "fonts-dejavu-core"];
                return Ok(names.map(str::to_owned).into());
            }
            Product::Prometheus => return Ok(vec!["prometheus".into()]),
            Product::Python2 => return Ok(PYTHON2.map(str::to_owned).into()),
            Product::PgBouncer => return Ok(PGBOUNCER.map(str::to_owned).into()),
            Product::Nats => return Ok(vec!["nats-server".into()]),
        };
        let mut names = self.command("apt-cache");
        names.args(["pkgnames", "postgresql-"]);
        let names = check_output("list packages", &Process::output(names)?)?;
        let major = newest_postgres(&names, at_least).ok_or_else(|| {
            DevError::new(format!(
                "this system's package sources have no PostgreSQL {at_least} or newer"
            ))
        })?;
        Ok(vec![
            format!("postgresql-{major}"),
            format!("postgresql-client-{major}"),
            "libpq5".into(),
        ])
    }

    pub fn resolve(&self, core: &[String]) -> Result<Vec<Package>> {
        let mut plan = self.command("apt-get");
        plan.args(["--simulate", "--no-install-recommends", "install"])
            .args(core);
        let plan = check_output("resolve the dependencies", &Process::output(plan)?)?;
        Ok(plan.lines().filter_map(Package::read).collect())
    }

    pub fn download(&self, packages: &[Package]) -> Result<Vec<PathBuf>> {
        let mut download = self.command("apt-get");
        download.arg("download").args(
            packages
                .iter()
                .map(|package| format!("{}={}", package.name, package.version)),
        );
        check_output("download the packages", &Process::output(download)?)?;
        let archives = fs::read_dir(self.folder.join("archives"))
            .with_context(|| "read the downloads".into())?;
        Ok(archives.flatten().map(|entry| entry.path()).collect())
    }
}

/// The Debian mirror of this machine. It has the older releases too.
fn mirror() -> Result<String> {
    let mut ask = process::command(Path::new("apt-get"), "TERM");
    ask.args([
        "indextargets",
        "--format",
        "$(SITE)",
        "Created-By: Packages",
    ]);
    let sites = check_output("ask for the package sources", &Process::output(ask)?)?;
    Ok(debian_among(&sites)
        .unwrap_or("http://deb.debian.org/debian")
        .to_owned())
}

fn debian_among(sites: &str) -> Option<&str> {
    sites
        .lines()
        .map(|site| site.trim().trim_end_matches('/'))
        .find(|site| site.ends_with("/debian"))
}

/// Names of the packages that are installed on this machine.
pub fn installed_packages() -> Result<BTreeSet<String>> {
    let mut query = process::command(Path::new("dpkg-query"), "TERM");
    query.args(["-W", "-f", "${Package} ${db:Status-Status}\\n"]);
    let names = check_output("list the installed packages", &Process::output(query)?)?;
    Ok(names
        .lines()
        .filter_map(|line| line.strip_suffix(" installed"))
        .map(str::to_owned)
        .collect())
}

/// The standard output of a successful program; otherwise an error with its last lines.
pub fn check_output(what: &str, output: &Output) -> Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(DevError::new(format!(
        "could not {what}:\n{}",
        output_tail(output)
    )))
}

fn output_tail(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("E:") || line.starts_with("W:"))
        .collect();
    let lines = if lines.is_empty() {
        text.lines().collect()
    } else {
        lines
    };
    lines[lines.len().saturating_sub(6)..]
        .iter()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_mirror_is_used() {
        let sites = "http://deb.example/debian-security\nhttp://deb.example/debian/\nhttp://other.example/debian\n";
        assert_eq!(debian_among(sites), Some("http://deb.example/debian"));
        assert_eq!(debian_among("http://other.example/ubuntu\n"), None);
    }
}
