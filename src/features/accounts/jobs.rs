//! The work of accounts outside of requests: mailing codes and notices, deleting old rows.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Codes, Scene, SecurityChange, store};
use crate::{
    db::Db,
    error::{Error, Result},
    ids::UserId,
    jobs::{JobError, queue},
    limits::table::Overrides,
    mail::Mailer,
    metrics,
};

/// A code that is to be mailed.
pub struct CodeMail {
    pub recipient: String,
    pub scene: String,
    pub nonce: Uuid,
}

/// A login on a device that was not known.
pub struct LoginNotice {
    pub user: UserId,
    pub device_name: Option<String>,
    pub at: DateTime<Utc>,
}

/// Mails a code.
pub async fn mail_code(mailer: &Mailer, codes: &Codes, mail: &CodeMail) -> Result<(), JobError> {
    let scene = mail
        .scene
        .parse::<Scene>()
        .map_err(|_| JobError::Fail(queue::unreadable()))?;
    let code = codes.derive(&mail.recipient, scene, mail.nonce);
    send(mailer, &mail.recipient, subject(scene), &text(&code)).await
}

/// Mails a user about a login. An account that is gone gets no mail.
pub async fn mail_notice(db: &Db, mailer: &Mailer, notice: &LoginNotice) -> Result<(), JobError> {
    match store::address_of(db, notice.user).await? {
        Some(address) => send(mailer, &address, NEW_DEVICE_SUBJECT, &news(notice)).await,
        None => Ok(()),
    }
}

/// Mails a user about a change that a thief might make. An account that is gone gets no mail.
pub async fn mail_change(
    db: &Db,
    mailer: &Mailer,
    user: UserId,
    change: SecurityChange,
    at: DateTime<Utc>,
) -> Result<(), JobError> {
    let (_, subject, news, advice) = change.row();
    let at = at.format("%Y-%m-%d %H:%M UTC");
    let text = format!(
        "{news}\n\nTime: {at}\n\nIf it was you, ignore this mail. If not, {advice}\n\n\
         More changes of this kind within a day are not mailed.\n"
    );
    match store::address_of(db, user).await? {
        Some(address) => send(mailer, &address, subject, &text).await,
        None => Ok(()),
    }
}

async fn send(mailer: &Mailer, to: &str, subject: &str, text: &str) -> Result<(), JobError> {
    let sent = mailer.send(to, subject, text).await;
    metrics::mail(if sent.is_ok() { "sent" } else { "failed" });
    sent.map_err(|failure| JobError::Retry(Error::unavailable(failure)))
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

fn news(notice: &LoginNotice) -> String {
    let device = notice.device_name.as_deref().unwrap_or("without a name");
    let at = notice.at.format("%Y-%m-%d %H:%M UTC");
    format!(
        "Somebody has logged in to your account on a device that it did not know.\n\nDevice: {device}\nTime: {at}\n\n\
         If it was you, ignore this mail. If not, set a new password: that ends every session. Then look at your devices.\n"
    )
}

/// Deletes expired codes, guards and sessions.
pub async fn forget(db: &Db, budgets: &Overrides) -> Result<()> {
    store::forget(db, budgets).await
}
