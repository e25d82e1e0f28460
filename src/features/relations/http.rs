//! `GET /relations`, `DELETE /relations/{relation_id}`.

use axum::extract::State;

use super::{Relation, store};
use crate::{
    auth::user::User,
    backplane::Backplane,
    db::Db,
    error::Result,
    http::{Data, List, Path, Query, page::Page},
    ids::{EventId, RelationId},
    random::Random,
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

/// `DELETE /relations/{relation_id}`: ends a relation; what the two said is purged seven days later.
///
/// Caller: the relation's user. Answers 200 with the [`Relation`], also when it had
/// ended before. Tells both `relation.revoked`. Errors: `NOT_FOUND`.
pub async fn revoke(
    user: User,
    State(db): State<Db>,
    State(random): State<Random>,
    State(backplane): State<Backplane>,
    Path(id): Path<RelationId>,
) -> Result<Data<Relation>> {
    let tx = db.begin("relations.revoke").await?;
    let (relation, told) = store::revoke(&tx, user.id, id, EventId::generate(&random)).await?;
    tx.commit().await?;
    told.iter().for_each(|told| backplane.tell(told));
    Ok(Data(relation))
}
