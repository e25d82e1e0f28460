//! Where the dev cluster's files live and as whom the services run.
//!
//! Postgres refuses to run as root. Started by root, both services run as another user of the machine instead, and
//! if that user cannot reach the project folder (a checkout under `/root`, say) what they need lies under `/var/tmp`.

use std::{
    fs, io,
    os::unix::{
        fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sha2::{Digest, Sha256};

use super::{
    terminal::say,
    trouble::{Context, DevError, Result},
};

/// The user the services run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user's number.
    pub uid: u32,
    gid: u32,
    /// Whether it is another than the launcher's.
    other: bool,
}

impl Account {
    /// The launcher's own user, unless that is root: then the owner of the data that is there already (an ordinary
    /// user may have set up the tree), else `postgres` or `nobody`.
    fn choose(dev: &Path) -> Result<Self> {
        let me = Account::launcher()?;
        if me.uid != 0 {
            return Ok(me);
        }
        let stores = [
            Some(dev.to_owned()),
            Some(var_tmp(dev)).filter(|folder| is_mine(folder)),
        ];
        let made_before = stores
            .into_iter()
            .flatten()
            .map(|store| fs::metadata(store.join("postgres/data")));
        if let Some(data) = made_before.flatten().find(|data| data.uid() != 0) {
            return Ok(Account {
                uid: data.uid(),
                gid: data.gid(),
                other: true,
            });
        }
        let users = fs::read_to_string("/etc/passwd").doing(|| "read /etc/passwd".into())?;
        let found = ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| find_user(&users, name));
        let (uid, gid) = found.ok_or_else(|| {
            DevError::new(
                "Postgres refuses to run as root, and /etc/passwd has neither a user postgres nor nobody",
            )
        })?;
        Ok(Account {
            uid,
            gid,
            other: true,
        })
    }

    /// The launcher's own user.
    pub fn launcher() -> Result<Self> {
        let me = fs::metadata("/proc/self").doing(|| "read /proc".into())?;
        Ok(Account {
            uid: me.uid(),
            gid: me.gid(),
            other: false,
        })
    }

    /// Makes `command` run as this user.
    pub fn lend_to(&self, command: &mut Command) {
        if self.other {
            command.uid(self.uid).gid(self.gid);
        }
    }

    /// Gives a file or folder to this user.
    pub fn give(&self, path: &Path) -> Result<()> {
        if self.other {
            chown(path, Some(self.uid), Some(self.gid))
                .doing(|| format!("change the owner of {}", path.display()))?;
        }
        Ok(())
    }

    /// Whether this user can enter `folder`. Tried, not computed: access lists and mounts have a say too.
    fn can_enter(&self, folder: &Path) -> bool {
        let mut cd = Command::new("sh");
        cd.args(["-c", "cd \"$1\"", "sh"])
            .arg(folder)
            .current_dir("/");
        cd.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.lend_to(&mut cd);
        cd.status().is_ok_and(|status| status.success())
    }
}

/// The user's and group's number of `name` in the text of `/etc/passwd`.
fn find_user(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let fields = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let user = fields
        .into_iter()
        .find(|fields| fields.first() == Some(&name))?;
    Some((user.get(2)?.parse().ok()?, user.get(3)?.parse().ok()?))
}

/// The folders of one dev cluster.
#[derive(Clone, Debug)]
pub struct Place {
    /// `.dev`, absolute.
    pub dev: PathBuf,
    /// Where packages and the services' data lie: `.dev`, or a folder under `/var/tmp` (see above).
    pub store: PathBuf,
    /// Where fetched programs are.
    pub packages: PathBuf,
    /// As whom the services run.
    pub account: Account,
}

impl Place {
    /// Makes the folder `dev` if need be and finds out the rest.
    pub fn at(dev: &Path) -> Result<Self> {
        let dev = std::path::absolute(dev).doing(|| format!("find {}", dev.display()))?;
        fs::create_dir_all(&dev).doing(|| format!("make the folder {}", dev.display()))?;
        let dev = dev
            .canonicalize()
            .doing(|| format!("find {}", dev.display()))?;
        let account = Account::choose(&dev)?;
        // The services' user must get through to its own folders; everything else stays with the launcher's.
        let mode = if account.other { 0o711 } else { 0o700 };
        fs::set_permissions(&dev, fs::Permissions::from_mode(mode))
            .map_err(|error| foreign(&dev, &error))?;
        let store = if account.can_enter(&dev) {
            dev.clone()
        } else {
            elsewhere(&dev)?
        };
        let packages = store.join("packages");
        Ok(Place {
            dev,
            store,
            packages,
            account,
        })
    }

    /// The same with the programs that another place has fetched.
    pub fn with_packages(self, packages: Option<&Path>) -> Self {
        let packages = packages.map_or(self.packages, Path::to_owned);
        Place { packages, ..self }
    }

    /// Removes everything.
    pub fn wipe(dev: &Path) -> Result<()> {
        let dev = std::path::absolute(dev).doing(|| format!("find {}", dev.display()))?;
        // The folder itself may be gone already; what lies elsewhere is named after where it was.
        let parent = dev.parent().and_then(|parent| parent.canonicalize().ok());
        let dev = parent
            .zip(dev.file_name())
            .map_or(dev.clone(), |(parent, name)| parent.join(name));
        let elsewhere = var_tmp(&dev);
        for folder in [Some(elsewhere).filter(|folder| is_mine(folder)), Some(dev)]
            .into_iter()
            .flatten()
        {
            match fs::remove_dir_all(&folder) {
                Ok(()) => say(format!("removed {}", folder.display())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(foreign(&folder, &error)),
            }
        }
        Ok(())
    }
}

/// The launcher's user: the owner of its own entry in `/proc`.
pub fn my_uid() -> Result<u32> {
    fs::metadata("/proc/self")
        .map(|data| data.uid())
        .doing(|| "read /proc".into())
}

/// The folder under `/var/tmp` that belongs to the cluster in `dev`.
fn var_tmp(dev: &Path) -> PathBuf {
    PathBuf::from(format!("/var/tmp/blindpipe-{}", short_hash(dev)))
}

/// Whether a folder is the launcher's own. Anyone may write to /var/tmp: what is there may be another's trap.
fn is_mine(folder: &Path) -> bool {
    let data = fs::symlink_metadata(folder);
    data.is_ok_and(|data| data.is_dir() && my_uid().is_ok_and(|me| data.uid() == me))
}

fn elsewhere(dev: &Path) -> Result<PathBuf> {
    let folder = var_tmp(dev);
    if !folder.exists() {
        make_folder(&folder, 0o711)?;
    }
    if !is_mine(&folder) {
        return Err(DevError::new(format!(
            "{} belongs to somebody else: remove it",
            folder.display()
        )));
    }
    say(format!(
        "The services run as an ordinary user, who cannot reach {}: their files go to {}.",
        dev.display(),
        folder.display()
    ));
    Ok(folder)
}

/// Eight hexadecimal digits that stand for a path.
pub fn short_hash(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    digest
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Makes a folder (parents too) with exactly `mode`, whatever the umask says.
pub fn make_folder(path: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| foreign(path, &error))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| foreign(path, &error))
}

/// Writes a file that only its owner can read, replacing it as a whole.
pub fn write_secret(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let mut options = fs::OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary);
    let written = file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|error| foreign(path, &error))
}

/// Trouble with a path, and what is behind it most often.
fn foreign(path: &Path, error: &io::Error) -> DevError {
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
    fn users_are_found_by_their_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\npostgresql:x:7:7::/:/bin/sh\npostgres:x:101:104:,,,:/v:/bin/bash";
        assert_eq!(find_user(passwd, "postgres"), Some((101, 104)));
        assert_eq!(find_user(passwd, "nobody"), None);
        assert_eq!(find_user("postgres:x", "postgres"), None);
    }

    #[test]
    fn two_trees_have_two_folders() {
        assert_ne!(var_tmp(Path::new("/a/.dev")), var_tmp(Path::new("/b/.dev")));
        assert_eq!(short_hash(Path::new("/a")).len(), 8);
    }
}
