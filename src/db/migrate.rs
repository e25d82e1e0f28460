//! Applies `sql/migrations`, and the rights of `sql/grants.sql` and `sql/grants_erase.sql`. Each
//! migration runs once, however many nodes start together.
//!
//! Nodes of the build before serve meanwhile. Statements queue behind a migration that waits for a
//! lock, so it waits a quarter of a second and then lets them pass before it tries again.
//!
//! Why: ADR 23, ADR 40.

use std::{collections::BTreeSet, time::Duration};

use refinery::{Migration, Runner};
use tokio_postgres::{Client, Config, error::SqlState};

use super::pool::connect;

refinery::embed_migrations!("sql/migrations");

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Names the advisory lock under which migrations run.
const MIGRATION_LOCK_ID: i64 = 0x626c_696e_6470_6970;

/// The rights of the serving role, with `:"serving_role"` for its name as in psql.
const GRANTS: &str = include_str!("../../sql/grants.sql");
/// The rights of the role that erases, with `:"erasing_role"` for its name.
const ERASE_GRANTS: &str = include_str!("../../sql/grants_erase.sql");

/// The longest wait of a migration for a lock, far below the second after which a request that
/// waits is refused.
const LOCK_TIMEOUT: Duration = Duration::from_millis(250);
/// The pause before the next try, in which the statements behind it go on.
const LOCK_PAUSE: Duration = Duration::from_secs(1);
/// The tries, five minutes of them. A transaction that is older than that is an operator's.
const MAX_LOCK_TRIES: u32 = 240;

/// The migrations of a build.
pub struct Migrations(Vec<Migration>);

impl Migrations {
    /// Those of this build.
    pub fn own() -> Self {
        Migrations(migrations::runner().get_migrations().clone())
    }

    /// With another one, named as its file would be: for tests of a later build.
    pub fn and(mut self, name: &str, sql: &str) -> Result<Self, Failure> {
        self.0.push(Migration::unapplied(name, sql)?);
        Ok(self)
    }

    /// Applies the missing ones at a URL, outside of any pool, and returns their number.
    pub async fn apply_at(&self, url: &str) -> Result<usize, Failure> {
        let mut client = connect(url).await?;
        client
            .batch_execute("set lock_timeout = 0; set statement_timeout = 0")
            .await?;
        // The runner itself takes no lock. Waiting is right here, because the other node applies
        // the same migrations.
        client
            .execute("select pg_advisory_lock($1)", &[&MIGRATION_LOCK_ID])
            .await?;
        let applied = self.apply(&mut client).await;
        client
            .execute("select pg_advisory_unlock($1)", &[&MIGRATION_LOCK_ID])
            .await?;
        applied
    }

    async fn apply(&self, client: &mut Client) -> Result<usize, Failure> {
        if self.are_of_an_earlier_build(client).await? {
            tracing::info!("the schema is of a later build, which this one can serve with");
            return Ok(0);
        }
        let timeout = format!("set lock_timeout = {}", LOCK_TIMEOUT.as_millis());
        client.batch_execute(&timeout).await?;
        let (runner, mut applied) = (Runner::new(&self.0), 0);
        for attempt in 1.. {
            let error = match runner.run_async(client).await {
                Ok(report) => return Ok(applied + report.applied_migrations().len()),
                Err(error) => error,
            };
            if attempt == MAX_LOCK_TRIES || !is_lock_timeout(&error) {
                return Err(error.into());
            }
            let report = error.report();
            applied += report.map_or(0, |report| report.applied_migrations().len());
            tracing::warn!(
                operation = "migrate",
                attempt,
                remedy = "it is tried again in a second",
                "a migration waits for a lock that a long transaction has"
            );
            tokio::time::sleep(LOCK_PAUSE).await;
        }
        Ok(applied)
    }

    /// Whether the schema has all of these migrations and later ones: a release is rolled back.
    async fn are_of_an_earlier_build(&self, client: &Client) -> Result<bool, Failure> {
        let history = "select to_regclass('refinery_schema_history') is not null as exists";
        if !client
            .query_one(history, &[])
            .await?
            .get::<_, bool>("exists")
        {
            return Ok(false);
        }
        let versions = "select version from refinery_schema_history";
        let applied = client.query(versions, &[]).await?;
        let applied: BTreeSet<i32> = applied.iter().map(|row| row.get("version")).collect();
        let own: BTreeSet<i32> = self.0.iter().map(Migration::version).collect();
        Ok(own.is_subset(&applied) && own.last() < applied.last())
    }
}

fn is_lock_timeout(error: &refinery::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(error) = one.downcast_ref::<tokio_postgres::Error>() {
            return error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        }
        cause = one.source();
    }
    false
}

/// Applies the missing migrations of this build at a URL and returns their number.
pub async fn run_at(url: &str) -> Result<usize, Failure> {
    Migrations::own().apply_at(url).await
}

/// Gives `role` the rights of `sql/grants.sql` and takes all others from it. Nodes that run
/// meanwhile notice nothing. Does nothing if `role` is the role of `url`: it owns the schema.
pub async fn grant_at(url: &str, role: &str) -> Result<(), Failure> {
    apply_grants(url, role, GRANTS, ":\"serving_role\"").await
}

/// Gives `role` the rights of `sql/grants_erase.sql` and takes all others from it.
pub async fn grant_erasure_at(url: &str, role: &str) -> Result<(), Failure> {
    apply_grants(url, role, ERASE_GRANTS, ":\"erasing_role\"").await
}

/// Applies `grants`, in which `placeholder` stands for the quoted name of `role`.
async fn apply_grants(
    url: &str,
    role: &str,
    grants: &str,
    placeholder: &str,
) -> Result<(), Failure> {
    let mut client = connect(url).await?;
    let tx = client.transaction().await?;
    let row = tx
        .query_one(
            "select quote_ident($1) as name, $1 = current_user::text as is_owner, pg_advisory_xact_lock($2)",
            &[&role, &MIGRATION_LOCK_ID],
        )
        .await?;
    if row.get("is_owner") {
        return Ok(());
    }
    let name: &str = row.get("name");
    tx.batch_execute(&grants.replace(placeholder, name)).await?;
    tx.commit().await?;
    Ok(())
}

/// The role of a URL.
pub fn role_of(url: &str) -> Result<String, Failure> {
    let config: Config = url.parse()?;
    let role = config.get_user().ok_or("the URL names no role")?;
    Ok(role.to_owned())
}

/// The schema version that this binary was built with.
pub fn newest() -> i64 {
    migrations::runner()
        .get_migrations()
        .iter()
        .map(|step| i64::from(step.version()))
        .max()
        .unwrap_or_default()
}
