//! Applies `sql/migrations` and `sql/grants.sql`. Each migration runs once, however many nodes
//! start together.

use tokio_postgres::{Client, Config};

use super::pool::connect;

refinery::embed_migrations!("sql/migrations");

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Names the advisory lock under which migrations run.
const MIGRATION_LOCK_ID: i64 = 0x626c_696e_6470_6970;

/// The rights of the serving role, with `:"serving_role"` for its name as in psql.
const GRANTS: &str = include_str!("../../sql/grants.sql");

/// Applies the missing migrations and returns their number.
pub async fn run(client: &mut Client) -> Result<usize, Failure> {
    client
        .batch_execute("set lock_timeout = '10s'; set statement_timeout = 0")
        .await?;
    // The runner itself takes no lock. Waiting is right here, because the other node applies the
    // same migrations.
    client
        .execute("select pg_advisory_lock($1)", &[&MIGRATION_LOCK_ID])
        .await?;
    let report = migrations::runner().run_async(client).await;
    client
        .execute("select pg_advisory_unlock($1)", &[&MIGRATION_LOCK_ID])
        .await?;
    Ok(report?.applied_migrations().len())
}

/// Connects outside of any pool (no statement deadline) and applies the missing migrations.
pub async fn run_at(url: &str) -> Result<usize, Failure> {
    run(&mut connect(url).await?).await
}

/// Gives `role` the rights of `sql/grants.sql` and takes all others from it. Nodes that run
/// meanwhile notice nothing. Does nothing if `role` is the role of `url`: it owns the schema.
pub async fn grant_at(url: &str, role: &str) -> Result<(), Failure> {
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
    tx.batch_execute(&GRANTS.replace(":\"serving_role\"", name))
        .await?;
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
