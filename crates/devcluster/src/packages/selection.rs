//! Selects the packages of apt's plan to unpack.
//!
//! apt plans as if nothing were installed. Of that plan only libraries that the machine lacks are
//! unpacked, so they never shadow the machine's own.

use std::collections::BTreeSet;

/// Packages that are never unpacked. The C runtime must fit the machine's loader. LLVM (100 MB)
/// serves only Postgres's JIT compiler and graphics drivers, and both are off. Scripts of web pages
/// (`libjs-…`) are no libraries of programs.
const EXCLUDED: [&str; 10] = [
    "libc6",
    "libc-bin",
    "libgcc-s1",
    "libllvm",
    "libz3",
    "libperl",
    "libpam-modules",
    "libc-l10n",
    "libgl1-mesa-dri",
    "libjs-",
];

/// A package in apt's plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    pub name: String,
    pub version: String,
}

impl Package {
    /// Reads a line of `apt-get --simulate install`: `Inst name (version Source:suite [arch])`.
    pub fn read(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("Inst ")?.split_whitespace();
        let name = words.next()?.to_owned();
        let version = words
            .find_map(|word| word.strip_prefix('('))?
            .trim_end_matches(')')
            .to_owned();
        Some(Package { name, version })
    }
}

/// The core packages of `plan`, and its libraries that are not installed.
pub fn select(plan: &[Package], core: &[String], installed: &BTreeSet<String>) -> Vec<Package> {
    let is_library = |name: &str| {
        (name.starts_with("lib") && !name.ends_with("-perl") && !name.ends_with("-common")
            || name.starts_with("lua-"))
            && !EXCLUDED.iter().any(|excluded| name.starts_with(excluded))
    };
    let product = |package: &&Package| {
        core.contains(&package.name)
            || is_library(&package.name) && !installed.contains(&package.name)
    };
    plan.iter().filter(product).cloned().collect()
}

/// The newest major version among package names such as `postgresql-15`.
pub fn newest_postgres(names: &str, at_least: u32) -> Option<u32> {
    let majors = names
        .lines()
        .filter_map(|name| name.trim().strip_prefix("postgresql-")?.parse().ok());
    majors.filter(|major| *major >= at_least).max()
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
    fn an_upgrade_line_with_the_old_version_is_read() {
        let package = Package::read("Inst libfoo1 [1.0-1] (1.0-2 Debian:12 [amd64])").unwrap();
        assert_eq!(
            (package.name.as_str(), package.version.as_str()),
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
