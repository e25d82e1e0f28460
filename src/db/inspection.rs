//! Facts about a Postgres server that an operator must know.

use std::time::{Duration, Instant};

use secrecy::SecretString;
use tokio_postgres::Client;

use super::{Db, Plans};
use crate::error::Result as OurResult;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A server, its settings for our role, and our schema in it.
pub struct Inspection {
    /// As `server_version_num`.
    pub version: i32,
    pub is_standby: bool,
    pub fsync: String,
    pub synchronous_commit: String,
    pub full_page_writes: String,
    pub max_connections: i64,
    /// Whether the role is a superuser or owns the tables.
    pub is_powerful: bool,
    /// The version of the schema; none if there is none, or the role may not read it.
    pub schema: Option<i64>,
    /// The server's clock since 1970, at the moment of the return.
    pub clock: Duration,
}

impl Inspection {
    /// Connects with `url` and looks.
    pub async fn of(url: &str) -> Result<Self, Failure> {
        let client = super::pool::connect(url).await?;
        let row = client
            .query_one(
                "-- inspection.server
                select current_setting('server_version_num')::int as version,
                    pg_is_in_recovery() as is_standby, current_setting('fsync') as fsync,
                    current_setting('synchronous_commit') as synchronous_commit,
                    current_setting('full_page_writes') as full_page_writes,
                    current_setting('max_connections')::int8 as max_connections,
                    current_setting('is_superuser') = 'on'
                        or coalesce((select pg_has_role(relowner, 'usage') from pg_class
                                     where oid = to_regclass('message')), false) as is_powerful",
                &[],
            )
            .await?;
        Ok(Inspection {
            version: row.get("version"),
            is_standby: row.get("is_standby"),
            fsync: row.get("fsync"),
            synchronous_commit: row.get("synchronous_commit"),
            full_page_writes: row.get("full_page_writes"),
            max_connections: row.get("max_connections"),
            is_powerful: row.get("is_powerful"),
            schema: schema(&client).await,
            clock: clock(&client).await?,
        })
    }

    /// Connects as a node does, and returns the time-outs that such a connection lacks: a pooler
    /// drops them, and the role has none. Errors: a node refuses the connection.
    pub async fn missing_timeouts(url: &SecretString, wait: Duration) -> OurResult<Vec<String>> {
        let db = Db::new(url, "blindpipe doctor", 1, Plans::Free, wait)?;
        let rows = db
            .read()
            .await?
            .query(
                "-- inspection.timeouts
                select name from pg_settings
                where name in ('lock_timeout', 'idle_in_transaction_session_timeout') and setting = '0'
                order by name",
                &[],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get("name")).collect())
    }
}

async fn schema(client: &Client) -> Option<i64> {
    let history = "-- inspection.schema
        select max(version)::bigint as version from refinery_schema_history";
    let row = client.query_one(history, &[]).await.ok()?;
    row.get("version")
}

async fn clock(client: &Client) -> Result<Duration, Failure> {
    let asked = Instant::now();
    let row = client
        .query_one(
            "-- inspection.clock
            select extract(epoch from clock_timestamp())::float8 as clock",
            &[],
        )
        .await?;
    let half = asked.elapsed() / 2;
    Ok(Duration::try_from_secs_f64(row.get("clock"))? + half)
}
