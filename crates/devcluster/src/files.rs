//! Folders and files with exact permissions.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use sha2::{Digest, Sha256};

use crate::error::{Context, DevError, Result};

/// Makes a folder and its parents. The folder gets exactly `mode`, whatever the umask.
pub fn make_folder(path: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| write_error(path, &error))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| write_error(path, &error))
}

/// Writes a file that only its owner can read. A reader sees the old file or the new one, never
/// half of it.
pub fn write_secret(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|error| write_error(path, &error))
}

/// Opens a log for appending and reading. A service inherits it as an open file, so it needs no
/// access to the path.
pub fn open_log(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("open {}", path.display()))
}

/// The last 12 lines of a log.
pub fn log_tail(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// Eight hexadecimal digits that stand for a path.
pub fn short_hash(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    base16ct::lower::encode_string(&digest[..4])
}

/// An error of writing to `path`, with its most frequent cause.
pub fn write_error(path: &Path, error: &io::Error) -> DevError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ": another user (root?) seems to have started the cluster here before; clean up as that user first"
        }
        _ => "",
    };
    DevError::new(format!("could not write {}: {error}{hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_short_hash_of_its_own() {
        assert_eq!(short_hash(Path::new("/a")).len(), 8);
        assert_ne!(short_hash(Path::new("/a")), short_hash(Path::new("/b")));
    }
}
