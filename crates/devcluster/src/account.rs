//! The user that the services run as. Postgres refuses to run as root.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::error::{Context, DevError, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    gid: u32,
    /// Whether this is another user than the launcher's.
    is_other: bool,
}

impl Account {
    /// The user who started this program.
    pub fn launcher() -> Result<Self> {
        let me = fs::metadata("/proc/self").with_context(|| "read /proc".into())?;
        Ok(Account {
            uid: me.uid(),
            gid: me.gid(),
            is_other: false,
        })
    }

    /// The user for the services, which is the launcher unless that is root. For root it is the
    /// owner of an existing folder among `data_folders`, else `postgres` or `nobody`.
    pub fn for_services(data_folders: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let launcher = Account::launcher()?;
        if launcher.uid != 0 {
            return Ok(launcher);
        }
        let existing = data_folders
            .into_iter()
            .filter_map(|folder| fs::metadata(folder).ok());
        let owner = existing
            .map(|data| (data.uid(), data.gid()))
            .find(|(uid, _)| *uid != 0);
        let (uid, gid) = match owner {
            Some(owner) => owner,
            None => unprivileged_user()?,
        };
        Ok(Account {
            uid,
            gid,
            is_other: true,
        })
    }

    pub fn is_other(&self) -> bool {
        self.is_other
    }

    /// Makes `command` run as this user.
    pub fn apply_to(&self, command: &mut Command) {
        if self.is_other {
            command.uid(self.uid).gid(self.gid);
        }
    }

    /// Makes this user the owner of a file or folder.
    pub fn take_ownership(&self, path: &Path) -> Result<()> {
        if self.is_other {
            chown(path, Some(self.uid), Some(self.gid))
                .with_context(|| format!("change the owner of {}", path.display()))?;
        }
        Ok(())
    }

    /// Whether this user can enter `folder`. A trial decides, because access lists and mounts
    /// matter too.
    pub fn can_enter(&self, folder: &Path) -> bool {
        let mut cd = Command::new("sh");
        cd.args(["-c", "cd \"$1\"", "sh"])
            .arg(folder)
            .current_dir("/");
        cd.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.apply_to(&mut cd);
        cd.status().is_ok_and(|status| status.success())
    }
}

/// Uid and gid of `postgres` or `nobody`.
fn unprivileged_user() -> Result<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").with_context(|| "read /etc/passwd".into())?;
    let mut names = ["postgres", "nobody"].into_iter();
    names.find_map(|name| find_user(&users, name)).ok_or_else(|| {
        DevError::new(
            "Postgres refuses to run as root, and /etc/passwd has neither a user postgres nor nobody",
        )
    })
}

/// Uid and gid of the user `name` in the text of `/etc/passwd`.
fn find_user(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let mut users = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let user = users.find(|fields| fields.first() == Some(&name))?;
    Some((user.get(2)?.parse().ok()?, user.get(3)?.parse().ok()?))
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
}
