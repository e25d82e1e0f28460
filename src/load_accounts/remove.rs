use secrecy::{ExposeSecret, SecretString};

use super::{PUBLISH_TIME, Release, prefix};
use crate::{
    error::Error,
    features::{
        accounts,
        erasure::{self, account::end_locked},
    },
    ids::UserId,
    node::Failure,
};

/// Defines `pg_temp.remove_load_account`, for one connection of the owner.
const REMOVE: &str = include_str!("../../sql/remove_load_accounts.sql");
/// The beginning of the addresses of accounts that have ended.
const ENDED: &str = "deleted:";

fn said(error: Error) -> Failure {
    format!("{error:?}").into()
}

/// Ends the accounts of a name, or of all names, and removes the rows of all that have ended. An
/// interrupted removal continues where it was.
pub(super) async fn remove(
    release: &Release,
    owner: &SecretString,
    name: Option<&str>,
) -> Result<String, Failure> {
    let (work, db) = (&release.work, release.work.db());
    let client = crate::db::connect(owner.expose_secret()).await?;
    let chosen = name.map(prefix).unwrap_or_default();
    let live = accounts::load_accounts(db, &chosen).await.map_err(said)?;
    for user in live {
        end(release, user).await.map_err(said)?;
    }
    let ended = accounts::load_accounts(db, ENDED).await.map_err(said)?;
    for user in &ended {
        erasure::account(work, *user).await.map_err(said)?;
    }
    // The revocations leave this process behind the commits.
    tokio::time::sleep(PUBLISH_TIME).await;
    client.batch_execute(REMOVE).await?;
    let (mut removed, mut kept) = (0, 0);
    for user in &ended {
        let row = client
            .query_one("select pg_temp.remove_load_account($1) as removed", &[user])
            .await?;
        match row.get("removed") {
            true => removed += 1,
            false => kept += 1,
        }
    }
    let kept = match kept {
        0 => String::new(),
        kept => format!("; {kept} share something with others and stay as deleted accounts"),
    };
    Ok(format!("{removed} accounts are removed{kept}\n"))
}

async fn end(release: &Release, user: UserId) -> Result<(), Error> {
    let ended = release.work.run("load_accounts.end", async |tx| {
        accounts::lock(tx, user).await?;
        end_locked(tx, user).await?;
        accounts::keep_load_mark(tx, user).await
    });
    ended.await
}
