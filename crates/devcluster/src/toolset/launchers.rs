//! `.dev/bin`: scripts that run the clients which belong to the services.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::{Tools, Toolset};
use crate::{
    error::{Context, Result},
    files::make_folder,
};

impl Tools {
    /// Writes a launcher for each handy client.
    pub(super) fn write_launchers(&self, bin: &Path) -> Result<()> {
        make_folder(bin, 0o755)?;
        for (tools, program) in [
            (&self.postgres, "psql"),
            (&self.postgres, "pgbench"),
            (&self.postgres, "pg_dump"),
            (&self.redis, "redis-cli"),
        ] {
            write_launcher(bin, tools, program)?;
        }
        Ok(())
    }
}

impl Toolset {
    /// Writes launchers for Prometheus and its `promtool`, which the tests of the chart call.
    pub fn write_prometheus_launchers(&self, bin: &Path) -> Result<()> {
        make_folder(bin, 0o755)?;
        for program in ["promtool", "prometheus"] {
            write_launcher(bin, self, program)?;
        }
        Ok(())
    }
}

/// Writes `.dev/bin/<program>`, which runs the services' program with its libraries.
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
    // The file is replaced as a whole, because another process may be running it.
    let temporary = bin.join(format!(".{program}.{}", std::process::id()));
    fs::write(&temporary, script).with_context(|| format!("write {}", temporary.display()))?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))
        .with_context(|| "make a script executable".into())?;
    fs::rename(&temporary, &file).with_context(|| format!("write {}", file.display()))
}
