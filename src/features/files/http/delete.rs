//! `DELETE /objects/{object_key}`.

use axum::extract::State;
use blindpipe_protocol::files::DeletedObject;

use crate::{
    auth::caller::Caller,
    error::{Code, Result},
    features::files::store,
    http::{Data, Path},
    metrics,
    objects::ObjectKey,
    work::UnitOfWork,
};

/// `DELETE /objects/{object_key}`: deletes a file, and gives its bytes back to its account.
///
/// Caller: its uploader, or an owner or admin of its group. Its shares end, and messages that name
/// it stay. Downloads under way are cut within two seconds. Answers 200 with [`DeletedObject`].
/// Errors: `NOT_FOUND`, also the second time; `FORBIDDEN` for other members.
pub async fn delete(
    caller: Caller,
    State(work): State<UnitOfWork>,
    Path(key): Path<String>,
) -> Result<Data<DeletedObject>> {
    let key = ObjectKey::read(&key).ok_or(Code::NotFound)?;
    let deleted = work.run("files.delete", async |tx| {
        store::delete(tx, &key, caller.principal()).await
    });
    deleted.await?;
    metrics::upload("deleted");
    Ok(Data(DeletedObject { deleted: true }))
}
