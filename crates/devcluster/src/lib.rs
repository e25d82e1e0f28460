//! A whole cluster on a machine: private Postgres and Redis, certificates, nodes, and tools for
//! tests.
//!
//! The program `devcluster` runs the cluster for people (`make run`) and for the load test. The
//! integration tests use this library: [`services`], [`certs`], [`browser`], [`cluster`].
//! Everything lives in a single folder (`.dev`), needs no root and ends with the launcher. The
//! library knows the server only as a program with settings.

pub mod account;
pub mod autobahn;
pub mod browser;
pub mod certs;
pub mod cluster;
mod demo;
pub mod directories;
pub mod error;
mod files;
mod lock;
pub mod nats;
pub mod open_files;
mod packages;
pub mod pgbouncer;
mod ports;
mod postgres;
mod process;
mod random;
mod redis;
pub mod services;
pub mod terminal;
pub mod toolset;

use std::path::Path;

pub use error::DevError;

use self::{
    browser::{Browser, missing_browser_notice},
    directories::Directories,
    error::Result,
    lock::Lock,
    packages::Product,
    pgbouncer::{PgBouncer, missing_pooler_notice},
    terminal::{notice, say},
    toolset::{Tools, Toolset},
};

/// Finds or fetches Postgres, Redis, and what only tests need: the browser, Prometheus, PgBouncer.
pub fn fetch(directories: &Directories) -> Result<()> {
    let tools = Tools::obtain(directories)?;
    for (name, tools) in [("PostgreSQL", &tools.postgres), ("Redis", &tools.redis)] {
        say(format!(
            "{name} {} in {}",
            tools.version,
            tools.bin.display()
        ));
    }
    match Browser::obtain(directories) {
        Ok(browser) => say(browser.describe()),
        // Only the browser test needs it, and that test repeats this notice.
        Err(error) => say(missing_browser_notice(&error.to_string())),
    }
    match Toolset::obtain(directories, Product::Prometheus) {
        Ok(tools) => {
            tools.write_prometheus_launchers(&directories.root.join("bin"))?;
            say(format!(
                "Prometheus {} in {}",
                tools.version,
                tools.bin.display()
            ));
        }
        // Only the tests of the chart need it.
        Err(error) => say(notice("THE ALERT RULES ARE NOT TESTED", &error.to_string())),
    }
    match PgBouncer::obtain(directories) {
        Ok(tools) => say(format!(
            "PgBouncer {} in {}",
            tools.version,
            tools.bin.display()
        )),
        // Only the tests behind it need it, and they repeat this notice.
        Err(error) => say(missing_pooler_notice(&error.to_string())),
    }
    Ok(())
}

/// Removes the folder `root` and all other files of the cluster. Fails while anything runs there.
pub fn clean(root: &Path) -> Result<()> {
    let _locks = if root.exists() {
        Lock::take_all(root)?
    } else {
        Vec::new()
    };
    Directories::remove(root)
}
