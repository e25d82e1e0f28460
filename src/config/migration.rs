//! The settings of `blindpipe migrate`.

use secrecy::{ExposeSecret, SecretString};

use super::reading::{Faults, read_one};

/// The variable that a node never reads.
const MIGRATE_DATABASE_URL: &str = "MIGRATE_DATABASE_URL";

/// The settings of `blindpipe migrate` beside `DATABASE_URL`: (variable, default, help).
pub const MIGRATE_SETTINGS: &[(&str, Option<&str>, &str)] = &[(
    MIGRATE_DATABASE_URL,
    Some(""),
    "For `blindpipe migrate` only: Postgres as the owner of the schema, as a URL. The role of \
     `DATABASE_URL` then gets exactly the rights that nodes need. Empty: one role owns and serves.",
)];

/// The two roles of a migration, as URLs.
pub struct MigrationUrls {
    /// The role that owns the schema.
    pub owner: SecretString,
    /// The role that nodes serve with; none if it is the owner.
    pub serving: Option<SecretString>,
}

impl MigrationUrls {
    /// Reads `MIGRATE_DATABASE_URL` and `DATABASE_URL`.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let mut one = |name, default| -> Option<SecretString> {
            read_one(name, default, &get, &[], &mut faults)
        };
        let (owner, serving) = (
            one(MIGRATE_DATABASE_URL, Some("")),
            one("DATABASE_URL", None),
        );
        let (Some(owner), Some(serving)) = (owner, serving) else {
            return Err(Faults(faults));
        };
        let is_separate = !owner.expose_secret().is_empty();
        Ok(if is_separate {
            MigrationUrls {
                owner,
                serving: Some(serving),
            }
        } else {
            MigrationUrls {
                owner: serving,
                serving: None,
            }
        })
    }
}
