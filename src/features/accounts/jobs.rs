//! The work of accounts outside of requests: mailing codes and notices, deleting old rows.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Addressee, Codes, Scene, SecurityChange, rules::Purpose, store};
use crate::{
    db::Db,
    error::{Error, Result},
    ids::UserId,
    jobs::{JobError, queue},
    limits::table::Overrides,
    mail::{MailKind, Mailer},
    metrics,
};

/// A code that is to be mailed.
pub struct CodeMail {
    pub recipient: String,
    pub scene: String,
    pub nonce: Uuid,
    /// The locale of whoever asked.
    pub locale: Option<String>,
}

/// A login on a device that was not known.
pub struct LoginNotice {
    pub user: UserId,
    pub device_name: Option<String>,
    pub at: DateTime<Utc>,
}

/// Mails a code, in the language of the address's account, else of whoever asked.
pub async fn mail_code(
    db: &Db,
    mailer: &Mailer,
    codes: &Codes,
    mail: &CodeMail,
) -> Result<(), JobError> {
    let purpose =
        Purpose::from_name(&mail.scene).ok_or_else(|| JobError::Fail(queue::unreadable()))?;
    let code = codes.derive(&mail.recipient, purpose, mail.nonce);
    let kind = match purpose {
        Purpose::Scene(Scene::Register) => MailKind::CodeRegister,
        Purpose::Scene(Scene::Login) => MailKind::CodeLogin,
        Purpose::Scene(Scene::Reset) => MailKind::CodeReset,
        Purpose::Address => MailKind::CodeAddress,
    };
    let known = store::locale_of(db, &mail.recipient).await?;
    let to = Addressee {
        email: mail.recipient.clone(),
        locale: known.or_else(|| mail.locale.clone()).unwrap_or_default(),
    };
    send(mailer, &to, kind, &[("code", &code)]).await
}

/// Mails a user about a login. An account that is gone gets no mail.
pub async fn mail_notice(db: &Db, mailer: &Mailer, notice: &LoginNotice) -> Result<(), JobError> {
    let Some(to) = store::addressee(db, notice.user).await? else {
        return Ok(());
    };
    let nameless = mailer.word(&to.locale, "nameless");
    let device = notice.device_name.as_deref().unwrap_or(&nameless);
    let values = [("device", device), ("time", &shown(notice.at))];
    send(mailer, &to, MailKind::NewDevice, &values).await
}

/// Mails a user about a change that a thief might make. An account that is gone gets no mail.
pub async fn mail_change(
    db: &Db,
    mailer: &Mailer,
    user: UserId,
    change: SecurityChange,
    at: DateTime<Utc>,
) -> Result<(), JobError> {
    let Some(to) = store::addressee(db, user).await? else {
        return Ok(());
    };
    let added = store::count_changes(db, user).await?.to_string();
    let values = [("time", shown(at)), ("added", added)];
    let values = values
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    send(mailer, &to, change.row(), &values).await
}

/// Mails an address about a change of the account that it belonged to.
pub async fn mail_address(
    mailer: &Mailer,
    to: &Addressee,
    change: SecurityChange,
    at: DateTime<Utc>,
) -> Result<(), JobError> {
    send(mailer, to, change.row(), &[("time", &shown(at))]).await
}

async fn send(
    mailer: &Mailer,
    to: &Addressee,
    kind: MailKind,
    values: &[(&str, &str)],
) -> Result<(), JobError> {
    let sent = mailer.send(&to.email, &to.locale, kind, values).await;
    metrics::mail(if sent.is_ok() { "sent" } else { "failed" });
    sent.map_err(|failure| JobError::Retry(Error::unavailable(failure)))
}

fn shown(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M UTC").to_string()
}

/// Deletes expired codes, guards and sessions.
pub async fn forget(db: &Db, budgets: &Overrides) -> Result<()> {
    store::forget(db, budgets).await
}
