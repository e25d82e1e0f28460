//! The folders of a dev cluster.
//!
//! Root starts the services as another user (see [`crate::account`]). If that user cannot reach the
//! project folder (a checkout under `/root`, for example), the services' data lies under `/var/tmp`
//! instead.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::{
    account::Account,
    error::{Context, DevError, Result},
    files::{make_folder, short_hash, write_error},
    postgres::remove_from_memory,
    terminal::say,
};

#[derive(Clone, Debug)]
pub struct Directories {
    /// The folder `.dev`, as an absolute path.
    pub root: PathBuf,
    /// Parent of the services' data: `.dev`, or a folder under `/var/tmp`.
    pub data: PathBuf,
    /// Folder of fetched programs.
    pub packages: PathBuf,
    /// The user that the services run as.
    pub account: Account,
}

impl Directories {
    /// Makes the folder `root` if it is missing, and chooses the other folders.
    pub fn prepare(root: &Path) -> Result<Self> {
        let root = std::path::absolute(root).with_context(|| format!("find {}", root.display()))?;
        fs::create_dir_all(&root).with_context(|| format!("make the folder {}", root.display()))?;
        let root = root
            .canonicalize()
            .with_context(|| format!("find {}", root.display()))?;
        let shared = Some(shared_folder(&root)).filter(|folder| is_own_folder(folder));
        let stores = [Some(root.clone()), shared].into_iter().flatten();
        let account = Account::for_services(stores.map(|store| store.join("postgres/data")))?;
        // The services' user must be able to enter its own folders. Everything else belongs to the
        // launcher's user.
        let mode = if account.is_other() { 0o711 } else { 0o700 };
        fs::set_permissions(&root, fs::Permissions::from_mode(mode))
            .map_err(|error| write_error(&root, &error))?;
        let data = if account.can_enter(&root) {
            root.clone()
        } else {
            prepare_shared_folder(&root)?
        };
        let packages = data.join("packages");
        Ok(Directories {
            root,
            data,
            packages,
            account,
        })
    }

    /// These directories with the packages of another cluster.
    pub fn with_packages(self, packages: Option<&Path>) -> Result<Self> {
        let Some(packages) = packages else {
            return Ok(self);
        };
        // apt takes its own root for that of a relative path.
        let packages = std::path::absolute(packages)
            .with_context(|| format!("find {}", packages.display()))?;
        Ok(Directories { packages, ..self })
    }

    /// Removes everything that belongs to the cluster in `root`.
    pub fn remove(root: &Path) -> Result<()> {
        let root = std::path::absolute(root).with_context(|| format!("find {}", root.display()))?;
        // The shared folder is named after the real path of `root`, and `root` itself may be gone
        // already.
        let parent = root.parent().and_then(|parent| parent.canonicalize().ok());
        let root = parent
            .zip(root.file_name())
            .map_or(root.clone(), |(parent, name)| parent.join(name));
        let shared = Some(shared_folder(&root)).filter(|folder| is_own_folder(folder));
        for folder in [shared, Some(root)].into_iter().flatten() {
            remove_from_memory(&folder);
            match fs::remove_dir_all(&folder) {
                Ok(()) => say(format!("removed {}", folder.display())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(write_error(&folder, &error)),
            }
        }
        Ok(())
    }
}

/// The folder under `/var/tmp` that belongs to the cluster in `root`.
fn shared_folder(root: &Path) -> PathBuf {
    PathBuf::from(format!("/var/tmp/blindpipe-{}", short_hash(root)))
}

/// Whether the launcher owns a folder. Any user may write to `/var/tmp`, so a folder there may be a
/// trap.
fn is_own_folder(folder: &Path) -> bool {
    let data = fs::symlink_metadata(folder);
    data.is_ok_and(|data| {
        data.is_dir() && Account::launcher().is_ok_and(|launcher| data.uid() == launcher.uid)
    })
}

fn prepare_shared_folder(root: &Path) -> Result<PathBuf> {
    let folder = shared_folder(root);
    if !folder.exists() {
        make_folder(&folder, 0o711)?;
    }
    if !is_own_folder(&folder) {
        return Err(DevError::new(format!(
            "{} belongs to somebody else: remove it",
            folder.display()
        )));
    }
    say(format!(
        "The services run as an ordinary user, who cannot reach {}: their files go to {}.",
        root.display(),
        folder.display()
    ));
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_trees_have_two_folders() {
        assert_ne!(
            shared_folder(Path::new("/a/.dev")),
            shared_folder(Path::new("/b/.dev"))
        );
    }
}
