//! Postgres and Redis of the cluster.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{Options, Shutdown};
use crate::{
    directories::Directories,
    error::{Context, DevError, Result},
    process,
    services::{Durability, Services},
    terminal::{say, warn},
};

/// Starts both on a thread of their own, because a start blocks and Ctrl-C must still work.
pub async fn start(options: &Options, shutdown: &Shutdown) -> Result<Services> {
    let began = Instant::now();
    let (sender, mut started) = oneshot::channel();
    let (root, packages) = (options.root.clone(), options.packages.clone());
    thread::spawn(move || {
        // If the launcher has given up, the services cannot be sent and stop when they are dropped
        // here.
        drop(sender.send(start_blocking(&root, packages.as_deref())));
    });
    let services = tokio::select! {
        services = &mut started => services.with_context(|| "start the services".into())??,
        () = shutdown.requested() => {
            process::interrupt();
            // The thread sees its child end and cleans up. Its services end with this process
            // anyway.
            let _ = timeout(Duration::from_secs(20), started).await;
            return Err(DevError::new("stopped before the cluster was up"));
        }
    };
    say(format!(
        "PostgreSQL {} on port {}, Redis {} on port {} ({:.1} s)",
        services.tools.postgres.version,
        services.postgres.port(),
        services.tools.redis.version,
        services.redis.port(),
        began.elapsed().as_secs_f32()
    ));
    Ok(services)
}

fn start_blocking(root: &Path, packages: Option<&Path>) -> Result<Services> {
    let directories = Directories::prepare(root)?.with_packages(packages)?;
    Services::start_in(directories, Durability::Durable)
}

/// Restarts Postgres and Redis if they end, until the shutdown.
pub async fn supervise(services: &mut Services, shutdown: &Shutdown) {
    loop {
        tokio::select! {
            () = sleep(Duration::from_millis(500)) => {}
            () = shutdown.requested() => return,
        }
        if services.redis.is_down() {
            say("Redis has ended. Starting it again, empty.");
            services.redis.restart().unwrap_or_else(warn);
        }
        if services.postgres.is_down() {
            say("PostgreSQL has ended. Starting it again.");
            services.postgres.restart().unwrap_or_else(warn);
        }
    }
}
