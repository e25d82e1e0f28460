//! Debian packages without root: downloaded by apt with a private state and unpacked into a folder.
//!
//! No package script runs, so nothing outside the folder changes: no system service, user or file.

mod apt;
mod selection;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use self::{
    apt::{Apt, check_output, installed_packages},
    selection::{Package, select},
};
use crate::{
    error::{Context, Result},
    files::make_folder,
    process::{self, Process},
    terminal::say,
};

/// A product that can be fetched.
#[derive(Clone, Copy, Debug)]
pub enum Product {
    /// The newest `postgresql-N` with N of at least this number.
    Postgres(u32),
    /// `redis-server` and its tools.
    Redis,
    /// Chromium without a window, and one font for it.
    Browser,
    /// Prometheus with `promtool`, which check the alert rules and the dashboard.
    Prometheus,
    /// Python 2.7 with pip, from the last Debian that has it.
    Python2,
    /// PgBouncer, from the first Debian whose version serves prepared statements.
    PgBouncer,
    /// NATS, from the first Debian whose version can sync each message.
    Nats,
}

impl Product {
    fn folder(self) -> &'static str {
        match self {
            Product::Postgres(_) => "postgres",
            Product::Redis => "redis",
            Product::Browser => "browser",
            Product::Prometheus => "prometheus",
            Product::Python2 => "python2",
            Product::PgBouncer => "pgbouncer",
            Product::Nats => "nats",
        }
    }

    /// The Debian release that has the product, if it is not the machine's own.
    fn release(self) -> Option<&'static str> {
        match self {
            Product::Python2 => Some("bullseye"),
            Product::PgBouncer | Product::Nats => Some("trixie"),
            _ => None,
        }
    }
}

/// The folder of a fetched product, whether it exists or not.
pub fn unpacked(packages: &Path, product: Product) -> PathBuf {
    packages.join(product.folder())
}

/// Fetches `product` and unpacks it into [`unpacked`]. The folder appears only when complete. Two
/// processes that fetch the same product take turns, and the second finds the folder.
pub fn fetch(packages: &Path, product: Product) -> Result<PathBuf> {
    let folder = unpacked(packages, product);
    make_folder(packages, 0o755)?;
    let lock = File::create(packages.join("lock")).with_context(|| "make a lock file".into())?;
    lock.lock()
        .with_context(|| "wait for another download".into())?;
    if folder.exists() {
        return Ok(folder);
    }
    let apt = Apt::new(&packages.join("apt"), product.release())?;
    apt.update()?;
    let core = apt.core_packages(product)?;
    let needed = select(&apt.resolve(&core)?, &core, &installed_packages()?);
    say(format!(
        "  downloading {} Debian packages: {}",
        needed.len(),
        needed
            .iter()
            .map(|package: &Package| package.name.as_str())
            .collect::<Vec<_>>()
            .join(" ")
    ));
    let archives = apt.download(&needed)?;
    let partial = packages.join(format!("{}.partial", product.folder()));
    let _ = fs::remove_dir_all(&partial);
    make_folder(&partial, 0o755)?;
    for archive in &archives {
        let mut unpack = process::command(Path::new("dpkg-deb"), "TERM");
        unpack.arg("-x").arg(archive).arg(&partial);
        check_output("unpack a package", &Process::output(unpack)?)?;
    }
    fs::rename(&partial, &folder).with_context(|| format!("make {}", folder.display()))?;
    // The lists and archives take some 60 MB.
    let _ = fs::remove_dir_all(packages.join("apt"));
    Ok(folder)
}

/// Folders of `root` that hold shared libraries, for `LD_LIBRARY_PATH`.
pub fn library_folders(root: &Path) -> Vec<PathBuf> {
    let parents = [root.join("usr/lib"), root.join("lib")];
    let children = parents.iter().flat_map(|parent| children(parent));
    let folders = children.filter(|path| named(path, |name| name.contains("-linux-")));
    // PulseAudio's client keeps half of its libraries in a folder of its own.
    folders
        .flat_map(|folder| [folder.join("pulseaudio"), folder])
        .filter(|folder| folder.is_dir())
        .collect()
}

/// The loader of `root`, if its packages bring a C runtime. Their programs need a newer one than
/// the machine's.
pub fn loader(root: &Path) -> Option<PathBuf> {
    let files = library_folders(root).into_iter();
    let mut files = files.flat_map(|folder| children(&folder));
    files.find(|path| named(path, |name| name.starts_with("ld-linux")))
}

fn children(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn named(path: &Path, fits: impl Fn(&str) -> bool) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(fits)
}
