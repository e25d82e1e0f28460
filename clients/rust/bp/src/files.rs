//! Files that only their owner reads, replaced as a whole.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

/// Makes a folder of mode 0700 and those above it.
pub fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// Writes a file of mode 0600 beside `path`, and renames it.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let name = format!(".bp-{}-{:x}.tmp", std::process::id(), rand::random::<u64>());
    let beside = folder.join(name);
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| fs::rename(&beside, path));
    if renamed.is_err() {
        fs::remove_file(&beside).ok();
    }
    renamed
}

/// Writes a new file of mode 0600, and none where one is.
pub fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A file that one process at a time holds.
pub fn lock(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    file.lock()?;
    Ok(file)
}
