//! Keeps the files of a test's databases in memory.
//!
//! Each test has a database of its own, which is 700 files to make and to remove. 24 tests used 10 and
//! 14 s of the kernel's time on a disk, more in the second run, and 5 s in memory.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use super::PostgresServer;
use crate::{
    error::{Context, Result},
    files::short_hash,
    process::Process,
};

/// The file system in memory of Linux. Any user may write to it.
const MEMORY: &str = "/dev/shm";
/// Least free bytes there. The largest tests write some hundred megabytes.
const MIN_FREE_BYTES: u64 = 4 << 30;

impl PostgresServer {
    /// Moves the databases of a new cluster, which does not run, into memory if there is room. The
    /// files of an earlier run are removed in any case.
    pub(super) fn move_to_memory(&self) -> Result<()> {
        let (base, memory) = (self.data().join("base"), memory_folder(&self.data()));
        let is_free = match fs::remove_dir_all(&memory) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        let is_large = rustix::fs::statvfs(MEMORY)
            .is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) >= MIN_FREE_BYTES);
        if !is_free || !is_large {
            return Ok(());
        }
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(&base).arg(&memory);
        if !Process::output(copy)?.status.success() {
            return Ok(());
        }
        fs::remove_dir_all(&base)
            .and_then(|()| symlink(&memory, &base))
            .with_context(|| format!("move {} to {}", base.display(), memory.display()))
    }
}

/// The folder in memory of the cluster whose data is in `data`.
fn memory_folder(data: &Path) -> PathBuf {
    Path::new(MEMORY).join(format!("blindpipe-{}", short_hash(data)))
}

/// Removes what the tests of the cluster in `root` left in memory.
pub fn remove_from_memory(root: &Path) {
    let slots = fs::read_dir(root.join("test")).into_iter().flatten();
    for slot in slots.flatten() {
        let data = slot.path().join("postgres").join("data");
        // A cluster without such a folder has nothing to remove.
        let _ = fs::remove_dir_all(memory_folder(&data));
    }
}
