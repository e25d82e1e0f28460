//! `GET /relations`, `DELETE /relations/{relation_id}`.

use axum::extract::State;

use super::{Relation, store};
use crate::{
    auth::user::User,
    db::Db,
    error::Result,
    http::{Data, List, Path, Query, page::Page},
    ids::RelationId,
    limits::{Limiter, table::Limit},
    work::UnitOfWork,
};

/// `GET /relations`: the caller's relations, ended ones too, newest first.
///
/// Caller: user. Limit: `default_user`, 120/min. Query `limit`, `cursor`. Answers 200 with [`Relation`]s.
pub async fn list(
    user: User,
    limiter: Limiter,
    State(db): State<Db>,
    Query(page): Query<Page<RelationId>>,
) -> Result<List<Relation>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let relations = store::list(&db, user.id, page.cursor, page.rows()).await?;
    Ok(page.of(relations, |relation| relation.relation_id))
}

/// `DELETE /relations/{relation_id}`: ends a relation; what the two said is purged seven days later.
///
/// Caller: the relation's user. Limit: `default_user`, 120/min. Answers 200 with the [`Relation`], also when it had
/// ended before. Tells both `relation.revoked`. Errors: `NOT_FOUND`.
pub async fn revoke(
    user: User,
    limiter: Limiter,
    State(work): State<UnitOfWork>,
    Path(id): Path<RelationId>,
) -> Result<Data<Relation>> {
    limiter.check_route(Limit::DefaultUser, user.id).await?;
    let relation = work
        .run("relations.revoke", async |tx| {
            store::revoke(tx, user.id, id).await
        })
        .await?;
    Ok(Data(relation))
}
