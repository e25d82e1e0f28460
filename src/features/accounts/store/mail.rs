//! Mail that waits for the mail server.

use uuid::Uuid;

use crate::{db::Tx, error::Result, features::accounts::rules::Scene, ids::MailId};

/// A mail that is due, claimed by its caller for a minute.
pub struct Mail {
    pub id: MailId,
    pub recipient: String,
    pub scene: Scene,
    pub nonce: Uuid,
}

pub async fn claim_mail(tx: &Tx) -> Result<Option<Mail>> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.claim_mail
            update mail_outbox set due_at = app_now() + interval '1 minute', attempts = attempts + 1
            where mail_id = (
                select mail_id from mail_outbox where due_at <= app_now() and expires_at > app_now()
                order by due_at limit 1 for update skip locked
            )
            returning mail_id, recipient, kind, nonce",
        )
        .await?;
    let Some(row) = tx.query_opt(&stmt, &[]).await? else {
        return Ok(None);
    };
    Ok(Some(Mail {
        id: row.get("mail_id"),
        recipient: row.get("recipient"),
        scene: row.get("kind"),
        nonce: row.get("nonce"),
    }))
}

pub async fn delete_mail(tx: &Tx, id: MailId) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.delete_mail
            delete from mail_outbox where mail_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&id]).await?;
    Ok(())
}

/// The server did not take it: again after 2, 4, 8 ... seconds, at most a minute, while the code lives.
pub async fn retry_mail(tx: &Tx, id: MailId) -> Result<()> {
    let stmt = tx
        .prepare_cached(
            "-- accounts.retry_mail
            update mail_outbox set due_at = app_now() + make_interval(secs => least(60, 2 ^ attempts)) where mail_id = $1",
        )
        .await?;
    tx.execute(&stmt, &[&id]).await?;
    Ok(())
}
