//! Programs that are already installed on the machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::{MIN_CHROMIUM_VERSION, MIN_PROMETHEUS_VERSION, MIN_REDIS_VERSION, Toolset};
use crate::{account::Account, browser, packages::Product};

/// The installed programs of `product`, if they are new enough.
pub fn find_installed(product: Product, account: &Account) -> Option<Toolset> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    // An ordinary user's PATH lacks these folders.
    folders
        .extend(["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin"].map(PathBuf::from));
    match product {
        Product::Postgres(at_least) => {
            // A link to the server stands for the folder of its other programs.
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
                .find_map(|bin| Toolset::probe(bin, None, None, "postgres", at_least, account))
        }
        Product::Redis => folders.iter().find_map(|bin| {
            Toolset::probe(bin, None, None, "redis-server", MIN_REDIS_VERSION, account)
        }),
        Product::Browser => {
            folders.push("/usr/lib/chromium".into());
            folders.iter().find_map(|bin| {
                Toolset::probe(
                    bin,
                    None,
                    None,
                    browser::PROGRAM,
                    MIN_CHROMIUM_VERSION,
                    account,
                )
            })
        }
        Product::Prometheus => folders.iter().find_map(|bin| {
            Toolset::probe(bin, None, None, "promtool", MIN_PROMETHEUS_VERSION, account)
        }),
        // The suite is installed into it, so it is never the machine's own. An installed NATS may be
        // too old to sync each message.
        Product::Python2 | Product::Nats => None,
        Product::PgBouncer => folders
            .iter()
            .find_map(|bin| Toolset::probe_pgbouncer(bin, None, None, account)),
    }
}

/// The folders `<root>/<major>/bin`, the newest first.
pub fn postgres_folders(root: &Path) -> Vec<PathBuf> {
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
