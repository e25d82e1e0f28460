//! `GET /relations`, `DELETE /relations/{relation_id}`.

use axum::extract::State;

use super::{Relation, store};
use crate::{
    auth::user::User,
    db::Db,
    error::Result,
    http::{Data, List, Path, Query, page::Page},
    ids::RelationId,
    work::UnitOfWork,
};

/// `GET /relations`: the caller's relations, ended ones too, newest first.
///
/// Caller: user. Query `limit`, `cursor`. Answers 200 with [`Relation`]s.
pub async fn list(
    user: User,
    State(db): State<Db>,
    Query(page): Query<Page<RelationId>>,
) -> Result<List<Relation>> {
    let relations = store::list(&db, user.id, page.cursor, page.rows()).await?;
    Ok(page.of(relations, |relation| relation.relation_id))
}

/// `DELETE /relations/{relation_id}`: ends a relation. The messages of the two are purged seven
/// days later.
///
/// Caller: the relation's user. Answers 200 with the [`Relation`], also when it had ended before.
/// Publishes `relation.revoked` to both. Errors: `NOT_FOUND`.
pub async fn revoke(
    user: User,
    State(work): State<UnitOfWork>,
    Path(id): Path<RelationId>,
) -> Result<Data<Relation>> {
    let relation = work
        .run("relations.revoke", async |tx| {
            store::revoke(tx, user.id, id).await
        })
        .await?;
    Ok(Data(relation))
}
