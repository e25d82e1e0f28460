//! `GET /users/me/blocks`, `PUT` and `DELETE /users/me/blocks/{principal_id}`.

use axum::extract::State;
use blindpipe_protocol::blocks::{Block, Blocked, Unblocked};

use super::store;
use crate::{
    auth::user::User,
    db::Db,
    error::{Error, Result},
    http::{Data, List, Path, Query, page::Page},
    ids::Principal,
    work::UnitOfWork,
};

/// `GET /users/me/blocks`: the caller's block list, newest first.
///
/// Caller: user. Query `limit`, `cursor`. Answers 200 with [`Block`]s.
pub async fn list(
    user: User,
    State(db): State<Db>,
    Query(page): Query<Page<Principal>>,
) -> Result<List<Block>> {
    let blocks = store::list(&db, user.id, page.cursor, page.rows()).await?;
    Ok(page.of(blocks, |block| block.principal_id))
}

/// `PUT /users/me/blocks/{principal_id}`: blocks a user or an agent. A blocked agent loses its
/// relation with the caller.
///
/// Caller: user. Answers 200 with [`Blocked`], also when the principal was blocked before.
/// Publishes `relation.revoked` to both if a relation ends. Errors: `NOT_FOUND`.
pub async fn put(
    user: User,
    State(work): State<UnitOfWork>,
    Path(principal): Path<Principal>,
) -> Result<Data<Blocked>> {
    if principal == Principal::User(user.id) {
        return Err(Error::field("principal_id", "self", "must be another"));
    }
    let blocked = work.run("blocks.put", async |tx| {
        store::put(tx, &user, principal).await
    });
    blocked.await.map(Data)
}

/// `DELETE /users/me/blocks/{principal_id}`: ends a block. A relation that it ended stays ended.
///
/// Caller: user. Answers 200 with [`Unblocked`], also when the principal was not blocked. Errors:
/// `NOT_FOUND`.
pub async fn remove(
    user: User,
    State(work): State<UnitOfWork>,
    Path(principal_id): Path<Principal>,
) -> Result<Data<Unblocked>> {
    let removed = work.run("blocks.remove", async |tx| {
        store::remove(tx, user.id, principal_id).await
    });
    removed.await?;
    Ok(Data(Unblocked { principal_id }))
}
