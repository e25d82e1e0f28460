//! What accounts do outside of requests: mailing codes, forgetting old ones, leaving conversations when they are gone.

use std::time::Duration;

use tokio::task::JoinSet;

use super::{Codes, Scene, store};
use crate::{
    db::Db, delivery::Backplane, error::Result, limits::table::Overrides, mail::Mailer, metrics,
    random::Random,
};

/// Mails handed over at once.
const MAX_CONCURRENT_MAILS: usize = 8;
/// While some are under way, new ones are looked for this often.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Something to be mailed.
enum Letter {
    Code(store::Mail),
    /// And whom it goes to.
    Notice(store::Notice, String),
}

/// Sends what waits in the outbox, so that a server that is slow with one mail does not hold up the others; returns
/// when nothing is due or under way.
pub async fn send_mail(db: &Db, codes: &Codes, mailer: &Mailer) -> Result<()> {
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() < MAX_CONCURRENT_MAILS
            && let Some(letter) = claim(db).await?
        {
            under_way.spawn(deliver(db.clone(), codes.clone(), mailer.clone(), letter));
        }
        tokio::select! {
            settled = under_way.join_next() => match settled {
                None => return Ok(()),
                Some(Ok(Err(error))) => error.log(),
                // A panic has been logged by its hook; the mail's claim runs out.
                Some(_) => {}
            },
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// Hands one mail over. Whoever dies before it is settled has claimed it for a minute; then another takes it.
async fn deliver(db: Db, codes: Codes, mailer: Mailer, letter: Letter) -> Result<()> {
    let sent = match &letter {
        Letter::Code(mail) => {
            let code = codes.derive(&mail.recipient, mail.scene, mail.nonce);
            mailer
                .send(&mail.recipient, subject(mail.scene), &text(&code))
                .await
        }
        Letter::Notice(notice, recipient) => {
            mailer
                .send(recipient, NEW_DEVICE_SUBJECT, &news(notice))
                .await
        }
    };
    metrics::mail(if sent.is_ok() { "sent" } else { "failed" });
    if let Err(error) = &sent {
        tracing::warn!(%error, "a mail was not taken");
    }
    let tx = db.begin("accounts.settle_mail").await?;
    match letter {
        Letter::Code(mail) if sent.is_ok() => store::delete_mail(&tx, mail.id).await?,
        Letter::Code(mail) => store::retry_mail(&tx, mail.id).await?,
        Letter::Notice(notice, _) => store::settle_notice(&tx, &notice, sent.is_ok()).await?,
    }
    tx.commit().await
}

/// Codes first: somebody waits for them.
async fn claim(db: &Db) -> Result<Option<Letter>> {
    let tx = db.begin("accounts.claim_mail").await?;
    let letter = match store::claim_mail(&tx).await? {
        Some(mail) => Some(Letter::Code(mail)),
        None => store::claim_notice(&tx)
            .await?
            .map(|(notice, to)| Letter::Notice(notice, to)),
    };
    tx.commit().await?;
    Ok(letter)
}

fn subject(scene: Scene) -> &'static str {
    match scene {
        Scene::Register => "Your code to register",
        Scene::Login => "Your code to log in",
        Scene::Reset => "Your code to set a new password",
    }
}

fn text(code: &str) -> String {
    format!(
        "Your code:\n\n{code}\n\nIt is valid for ten minutes. If you did not ask for it, ignore this mail.\n"
    )
}

const NEW_DEVICE_SUBJECT: &str = "A login on a new device";

fn news(notice: &store::Notice) -> String {
    let device = notice.device_name.as_deref().unwrap_or("without a name");
    let at = notice.at.format("%Y-%m-%d %H:%M UTC");
    format!(
        "Somebody has logged in to your account on a device that it did not know.\n\nDevice: {device}\nTime: {at}\n\n\
         If it was you, ignore this mail. If not, set a new password: that ends every session. Then look at your devices.\n"
    )
}

/// Deletes codes, guards and sessions that have run out.
pub async fn forget(db: &Db, budgets: &Overrides) -> Result<()> {
    store::forget(db, budgets).await
}

/// Ends what deleted accounts have left behind: keys, relations, places in conversations, one a transaction.
pub async fn erase(db: &Db, random: &Random, backplane: &Backplane) -> Result<()> {
    loop {
        let tx = db.begin("accounts.erase").await?;
        let Some(told) = store::erase_next(&tx, random).await? else {
            return Ok(());
        };
        tx.commit().await?;
        told.iter().for_each(|told| backplane.tell(told));
    }
}
