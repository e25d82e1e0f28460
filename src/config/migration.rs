//! The settings of `blindpipe migrate` and of `blindpipe erase`.

use secrecy::{ExposeSecret, SecretString};

use super::reading::{Faults, read_one};

/// The variables that a node never reads.
const MIGRATE_DATABASE_URL: &str = "MIGRATE_DATABASE_URL";
const ERASE_DATABASE_URL: &str = "ERASE_DATABASE_URL";

/// The settings of `blindpipe migrate` and `blindpipe erase` beside `DATABASE_URL`: (variable, default,
/// help).
pub const MIGRATE_SETTINGS: &[(&str, Option<&str>, &str)] = &[
    (
        MIGRATE_DATABASE_URL,
        Some(""),
        "For `blindpipe migrate` only: Postgres as the owner of the schema, as a URL. The role of \
         `DATABASE_URL` then gets exactly the rights that nodes need. Empty: one role owns and serves.",
    ),
    (
        ERASE_DATABASE_URL,
        Some(""),
        "For `blindpipe migrate` and `blindpipe erase` only: Postgres as the role that erases, as a \
         URL. It may erase the key backups of accounts that were deleted 7 days ago, and nothing else.",
    ),
];

/// The roles of a migration, as URLs.
pub struct MigrationUrls {
    /// The role that owns the schema.
    pub owner: SecretString,
    /// The role that nodes serve with; none if it is the owner.
    pub serving: Option<SecretString>,
    /// The role that erases, if there is one.
    pub erasing: Option<SecretString>,
}

impl MigrationUrls {
    /// Reads `MIGRATE_DATABASE_URL`, `DATABASE_URL` and `ERASE_DATABASE_URL`.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let mut one = |name, default| -> Option<SecretString> {
            read_one(name, default, &get, &[], &mut faults)
        };
        let urls = (
            one(MIGRATE_DATABASE_URL, Some("")),
            one("DATABASE_URL", None),
            one(ERASE_DATABASE_URL, Some("")),
        );
        let (Some(owner), Some(serving), Some(erasing)) = urls else {
            return Err(Faults(faults));
        };
        let erasing = Some(erasing).filter(|url| !url.expose_secret().is_empty());
        let is_separate = !owner.expose_secret().is_empty();
        let (owner, serving) = match is_separate {
            true => (owner, Some(serving)),
            false => (serving, None),
        };
        Ok(MigrationUrls {
            owner,
            serving,
            erasing,
        })
    }
}

/// Reads `ERASE_DATABASE_URL`, which `blindpipe erase` needs.
pub fn read_erase_url(get: impl Fn(&str) -> Option<String>) -> Result<SecretString, Faults> {
    let mut faults = Vec::new();
    let url = read_one(ERASE_DATABASE_URL, None, &get, &[], &mut faults);
    url.ok_or(Faults(faults))
}
