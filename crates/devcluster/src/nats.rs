//! NATS, which load tests measure beside the service.

use std::path::PathBuf;

use crate::{directories::Directories, error::Result, packages::Product, toolset::Toolset};

/// The server's program.
pub const PROGRAM: &str = "nats-server";

/// Fetches the server, the first time. Returns its program.
pub fn fetch(directories: &Directories) -> Result<PathBuf> {
    let tools = Toolset::obtain(directories, Product::Nats)?;
    Ok(tools.bin.join(PROGRAM))
}
