//! Debian packages without root: downloaded by apt with a private state, unpacked into a folder, never installed.
//!
//! No package script runs, so no system service, user or file outside the folder comes into being. apt resolves the
//! dependencies as if nothing were installed; of the outcome only libraries that the machine lacks are taken, so the
//! machine's own are never shadowed.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    browser,
    place::make_folder,
    process::{self, Process},
    terminal::say,
    trouble::{Context, DevError, Result},
};

/// Libraries that are never unpacked: the C runtime must be the machine's (its loader is), LLVM (100 MB) is only for
/// Postgres's JIT compiler and for graphics drivers, and neither is used here.
const NEVER: [&str; 9] = [
    "libc6",
    "libc-bin",
    "libgcc-s1",
    "libllvm",
    "libz3",
    "libperl",
    "libpam-modules",
    "libc-l10n",
    "libgl1-mesa-dri",
];

/// Python 2.7 as far as pip and a program without a window need it; the first is its interpreter.
const PYTHON2: [&str; 6] = [
    "python2.7-minimal",
    "libpython2.7-minimal",
    "libpython2.7-stdlib",
    "python-pip-whl",
    "python-pkg-resources",
    "python-setuptools",
];
/// Whose signatures count for a release that is not the machine's.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What to fetch.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// The newest `postgresql-N` with N ≥ the number.
    Postgres(u32),
    /// `redis-server` and its tools.
    Redis,
    /// Chromium without a window, and one font for it.
    Browser,
    /// Python 2.7 with pip, from the last Debian that has it.
    Python2,
}

impl Wanted {
    fn folder(self) -> &'static str {
        match self {
            Wanted::Postgres(_) => "postgres",
            Wanted::Redis => "redis",
            Wanted::Browser => "browser",
            Wanted::Python2 => "python2",
        }
    }

    /// The release of Debian that has it, if not the machine's own.
    fn release(self) -> Option<&'static str> {
        matches!(self, Wanted::Python2).then_some("bullseye")
    }
}

/// The folder of a fetched package set, whether it is there or not.
pub fn unpacked(packages: &Path, wanted: Wanted) -> PathBuf {
    packages.join(wanted.folder())
}

/// Fetches `wanted` and unpacks it into [`unpacked`]; the folder appears only when complete. Two processes that need
/// the same do it one after the other, and the second finds it there.
pub fn fetch(packages: &Path, wanted: Wanted) -> Result<PathBuf> {
    let folder = unpacked(packages, wanted);
    make_folder(packages, 0o755)?;
    let lock = File::create(packages.join("lock")).doing(|| "make a lock file".into())?;
    lock.lock().doing(|| "wait for another download".into())?;
    if folder.exists() {
        return Ok(folder);
    }
    let apt = Apt::new(&packages.join("apt"), wanted.release())?;
    apt.update()?;
    let core = apt.core_packages(wanted)?;
    let needed = select(&apt.resolve(&core)?, &core, &installed()?);
    say(format!(
        "  downloading {} Debian packages: {}",
        needed.len(),
        needed
            .iter()
            .map(Package::name)
            .collect::<Vec<_>>()
            .join(" ")
    ));
    let archives = apt.download(&needed)?;
    let partial = packages.join(format!("{}.partial", wanted.folder()));
    let _ = fs::remove_dir_all(&partial);
    make_folder(&partial, 0o755)?;
    for archive in &archives {
        let mut unpack = process::command(Path::new("dpkg-deb"), "TERM");
        unpack.arg("-x").arg(archive).arg(&partial);
        succeed("unpack a package", &Process::output(unpack)?)?;
    }
    fs::rename(&partial, &folder).doing(|| format!("make {}", folder.display()))?;
    // The lists and archives are some 60 MB that nobody needs again.
    let _ = fs::remove_dir_all(packages.join("apt"));
    Ok(folder)
}

/// Folders of `root` that hold shared libraries, for `LD_LIBRARY_PATH`.
pub fn library_folders(root: &Path) -> Vec<PathBuf> {
    let parents = [root.join("usr/lib"), root.join("lib")];
    let children = parents
        .iter()
        .filter_map(|parent| fs::read_dir(parent).ok())
        .flatten()
        .flatten();
    let folders = children.filter(|entry| entry.file_name().to_string_lossy().contains("-linux-"));
    let folders = folders.map(|entry| entry.path());
    // PulseAudio's client keeps the half of itself apart; the machine's own loader is told of it by a search path.
    folders
        .flat_map(|folder| [folder.join("pulseaudio"), folder])
        .filter(|folder| folder.is_dir())
        .collect()
}

/// One package of apt's plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
}

impl Package {
    fn name(&self) -> &str {
        &self.name
    }

    /// Reads a line of `apt-get --simulate install`: `Inst name (version Source:suite [arch])`.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("Inst ")?.split_whitespace();
        let name = words.next()?.to_owned();
        let version = words
            .find_map(|word| word.strip_prefix('('))?
            .trim_end_matches(')')
            .to_owned();
        Some(Package { name, version })
    }
}

/// Of apt's plan: the core packages, and those libraries that are not installed.
fn select(plan: &[Package], core: &[String], installed: &BTreeSet<String>) -> Vec<Package> {
    let is_library = |name: &str| {
        (name.starts_with("lib") && !name.ends_with("-perl") && !name.ends_with("-common")
            || name.starts_with("lua-"))
            && !NEVER.iter().any(|never| name.starts_with(never))
    };
    let wanted = |package: &&Package| {
        core.contains(&package.name)
            || is_library(&package.name) && !installed.contains(&package.name)
    };
    plan.iter().filter(wanted).cloned().collect()
}

/// The newest major version among package names such as `postgresql-15`.
fn newest_postgres(names: &str, at_least: u32) -> Option<u32> {
    let majors = names
        .lines()
        .filter_map(|name| name.trim().strip_prefix("postgresql-")?.parse().ok());
    majors.filter(|major| *major >= at_least).max()
}

/// apt with its own lists, cache and an empty idea of what is installed.
struct Apt {
    folder: PathBuf,
    /// Options that name a release other than the machine's.
    sources: Vec<String>,
}

impl Apt {
    fn new(folder: &Path, release: Option<&str>) -> Result<Self> {
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
        fs::write(folder.join("state/status"), "").doing(|| "write apt's state".into())?;
        let mut sources = Vec::new();
        if let Some(release) = release {
            let list = folder.join("sources.list");
            let text = format!("deb [signed-by={KEYRING}] {} {release} main\n", mirror()?);
            fs::write(&list, text).doing(|| "write apt's sources".into())?;
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
            // Only the package index: no translations, no icons, no programs that hook into an update.
            "Acquire::Languages=none".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "Acquire::Retries=2".into(),
            "Acquire::http::Timeout=20".into(),
            "Acquire::https::Timeout=20".into(),
            // As root apt would drop to a user who cannot write here.
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

    fn update(&self) -> Result<()> {
        let mut update = self.command("apt-get");
        update.arg("update");
        // One unreachable third-party source fails the whole update; whether what came is enough shows below.
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
            tail(&output)
        )))
    }

    fn core_packages(&self, wanted: Wanted) -> Result<Vec<String>> {
        let at_least = match wanted {
            Wanted::Postgres(at_least) => at_least,
            Wanted::Redis => return Ok(vec!["redis-server".into(), "redis-tools".into()]),
            Wanted::Browser => {
                let names = [browser::PROGRAM, "chromium-common", "fonts-dejavu-core"];
                return Ok(names.map(str::to_owned).into());
            }
            Wanted::Python2 => return Ok(PYTHON2.map(str::to_owned).into()),
        };
        let mut names = self.command("apt-cache");
        names.args(["pkgnames", "postgresql-"]);
        let names = succeed("list packages", &Process::output(names)?)?;
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

    fn resolve(&self, core: &[String]) -> Result<Vec<Package>> {
        let mut plan = self.command("apt-get");
        plan.args(["--simulate", "--no-install-recommends", "install"])
            .args(core);
        let plan = succeed("resolve the dependencies", &Process::output(plan)?)?;
        Ok(plan.lines().filter_map(Package::read).collect())
    }

    fn download(&self, packages: &[Package]) -> Result<Vec<PathBuf>> {
        let mut download = self.command("apt-get");
        download.arg("download").args(
            packages
                .iter()
                .map(|package| format!("{}={}", package.name, package.version)),
        );
        succeed("download the packages", &Process::output(download)?)?;
        let archives =
            fs::read_dir(self.folder.join("archives")).doing(|| "read the downloads".into())?;
        Ok(archives.flatten().map(|entry| entry.path()).collect())
    }
}

/// Where this machine gets Debian from: the same place has the older releases.
fn mirror() -> Result<String> {
    let mut ask = process::command(Path::new("apt-get"), "TERM");
    ask.args([
        "indextargets",
        "--format",
        "$(SITE)",
        "Created-By: Packages",
    ]);
    let sites = succeed("ask for the package sources", &Process::output(ask)?)?;
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
fn installed() -> Result<BTreeSet<String>> {
    let mut query = process::command(Path::new("dpkg-query"), "TERM");
    query.args(["-W", "-f", "${Package} ${db:Status-Status}\\n"]);
    let names = succeed("list the installed packages", &Process::output(query)?)?;
    Ok(names
        .lines()
        .filter_map(|line| line.strip_suffix(" installed"))
        .map(str::to_owned)
        .collect())
}

/// The output of a program that ended well; otherwise its last words.
fn succeed(what: &str, output: &Output) -> Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(DevError::new(format!(
        "could not {what}:\n{}",
        tail(output)
    )))
}

fn tail(output: &Output) -> String {
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
    fn a_plan_is_read_and_reduced() {
        let plan = "NOTE: This is only a simulation!\n\
            Inst libc6 (2.36-9 Debian:12.15/oldstable [amd64]) []\n\
            Inst libjemalloc2 (5.3.0-1 Debian:12.15/oldstable [amd64])\n\
            Inst libssl3 (3.0.22-1~deb12u2 Debian-Security:12/oldstable-security [amd64])\n\
            Inst perl (5.36.0-7 Debian:12.15 [amd64])\n\
            Inst libllvm14 (1:14.0.6-12 Debian:12.15 [amd64])\n\
            Inst redis-server (5:7.0.15-1~deb12u10 Debian-Security:12 [amd64])\n\
            Conf redis-server (5:7.0.15-1~deb12u10 Debian-Security:12 [amd64])";
        let plan: Vec<_> = plan.lines().filter_map(Package::read).collect();
        let installed = BTreeSet::from(["libssl3".to_owned()]);
        let chosen = select(&plan, &["redis-server".to_owned()], &installed);
        let names: Vec<_> = chosen
            .iter()
            .map(|package| format!("{}={}", package.name, package.version))
            .collect();
        assert_eq!(
            names,
            ["libjemalloc2=5.3.0-1", "redis-server=5:7.0.15-1~deb12u10"]
        );
    }

    #[test]
    fn the_machines_own_mirror_is_used() {
        let sites = "http://deb.example/debian-security\nhttp://deb.example/debian/\nhttp://other.example/debian\n";
        assert_eq!(debian_among(sites), Some("http://deb.example/debian"));
        assert_eq!(debian_among("http://other.example/ubuntu\n"), None);
    }

    #[test]
    fn an_upgrade_line_with_the_old_version_is_read() {
        let package = Package::read("Inst libfoo1 [1.0-1] (1.0-2 Debian:12 [amd64])").unwrap();
        assert_eq!(
            (package.name(), package.version.as_str()),
            ("libfoo1", "1.0-2")
        );
    }

    #[test]
    fn the_newest_server_package_is_chosen() {
        let names = "postgresql-9.6\npostgresql-15\npostgresql-client-17\npostgresql-16-pgvector\npostgresql-16\npostgresql-13\n";
        assert_eq!(newest_postgres(names, 15), Some(16));
        assert_eq!(newest_postgres("postgresql-14\n", 15), None);
    }
}
