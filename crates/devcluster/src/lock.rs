//! Exclusive use of a folder.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::Write,
    path::Path,
};

use crate::error::{Context, DevError, Result};

/// A lock that the kernel releases when the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the cluster in the folder `root`.
    pub fn take(root: &Path) -> Result<Self> {
        let path = root.join("lock");
        Lock::try_take(&path)?.ok_or_else(|| {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            DevError::new(format!(
                "a dev cluster of this tree is running already (process {}): use it, or stop it with Ctrl-C or `kill {0}`",
                pid.trim()
            ))
        })
    }

    /// Takes all locks in `root` and two levels below it (tests, downloads, clusters in a folder of
    /// `root`). Nothing in `root` is in use then.
    pub fn take_all(root: &Path) -> Result<Vec<Self>> {
        let mut locks = vec![Lock::take(root)?];
        let below = |folder: &Path| {
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
        };
        for folder in below(root)
            .flat_map(|folder| below(&folder).chain([folder.clone()]).collect::<Vec<_>>())
        {
            let path = folder.join("lock");
            if path.is_file() {
                let in_use = || {
                    DevError::new(format!(
                        "{} is in use (by tests?); wait for the end",
                        folder.display()
                    ))
                };
                locks.push(Lock::try_take(&path)?.ok_or_else(in_use)?);
            }
        }
        Ok(locks)
    }

    /// Takes the lock in the file `path`; none if another process has it.
    pub fn try_take(path: &Path) -> Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(path);
        let mut file = file.with_context(|| format!("open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
        }
        let written = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        written.with_context(|| format!("write {}", path.display()))?;
        Ok(Some(Lock { _file: file }))
    }
}
