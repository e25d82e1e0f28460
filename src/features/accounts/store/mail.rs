//! Mail that waits for the mail server.

use uuid::Uuid;

use crate::{error::Result, features::accounts::rules::Scene, ids::MailId, work::Tx};

/// A mail that is due, claimed by its caller for a minute.
pub struct Mail {
    pub id: MailId,
    pub recipient: String,
    pub scene: Scene,
    pub nonce: Uuid,
}

pub async fn claim_mail(tx: &Tx) -> Result<Option<Mail>> {
    let Some(row) = tx
        .query_opt(
            "-- accounts.claim_mail
            update mail_outbox set due_at = app_now() + interval '1 minute', attempts = attempts + 1
            where mail_id = (
                select mail_id from mail_outbox where due_at <= app_now() and expires_at > app_now()
                order by due_at limit 1 for update skip locked
            )
            returning mail_id, recipient, kind, nonce",
            &[],
        )
        .await?
    else {
        return Ok(None);
    };
    let scene = match row.get(2) {
        "register" => Scene::Register,
        "login" => Scene::Login,
        _ => Scene::Reset,
    };
    Ok(Some(Mail {
        id: row.get(0),
        recipient: row.get(1),
        scene,
        nonce: row.get(3),
    }))
}

pub async fn delete_mail(tx: &Tx, id: MailId) -> Result<()> {
    tx.execute(
        "-- accounts.delete_mail
        delete from mail_outbox where mail_id = $1",
        &[&id],
    )
    .await?;
    Ok(())
}

/// The server did not take it: again after 2, 4, 8 ... seconds, at most a minute, while the code lives.
pub async fn retry_mail(tx: &Tx, id: MailId) -> Result<()> {
    tx.execute(
        "-- accounts.retry_mail
        update mail_outbox set due_at = app_now() + make_interval(secs => least(60, 2 ^ attempts)) where mail_id = $1",
        &[&id],
    )
    .await?;
    Ok(())
}
