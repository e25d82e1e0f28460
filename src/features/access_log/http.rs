//! `GET /grants/access-log`.

use axum::extract::State;
use blindpipe_protocol::access_log::{Access, AccessQuery};

use super::store;
use crate::{
    auth::user::User,
    db::Db,
    error::Result,
    http::{List, Page, Query},
    ids::AccessId,
};

/// `GET /grants/access-log?agent_id=&conversation_id=&from=&to=&limit=&cursor=`: what agents have
/// read of the caller's data and of the caller's groups, newest first.
///
/// Caller: user. Answers 200 with [`Access`]es.
pub async fn list(
    user: User,
    State(db): State<Db>,
    Query(filter): Query<AccessQuery>,
    Query(page): Query<Page<AccessId>>,
) -> Result<List<Access>> {
    let rows = store::list(&db, user.id, &filter, page.cursor, page.rows()).await?;
    Ok(page.of(rows, |row| row.access_id))
}
