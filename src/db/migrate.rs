//! Applies `sql/migrations`. Each migration runs once, however many nodes start together.

use tokio_postgres::{Client, Config};

refinery::embed_migrations!("sql/migrations");

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Names the advisory lock under which migrations run.
const MIGRATION_LOCK_ID: i64 = 0x626c_696e_6470_6970;

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
    let (mut client, link) = url.parse::<Config>()?.connect(super::tls()).await?;
    #[expect(
        clippy::disallowed_methods,
        reason = "ends with this function's client"
    )]
    tokio::spawn(link);
    run(&mut client).await
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
