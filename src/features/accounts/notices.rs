//! Mails about changes that a thief might make. Those about addresses are mailed always, the others
//! each kind at most once a day and user.

use blindpipe_protocol::catalogue;

use super::store::{self, Profile};
use crate::{error::Result, ids::UserId, jobs::Job, mail::MailKind, work::Tx};

catalogue! {
    /// The changes: the mail about each, whose name is the change's.
    pub enum SecurityChange: MailKind {
        PasskeyAdded = MailKind::PasskeyAdded;
        PasswordChanged = MailKind::PasswordChanged;
        DeviceRevoked = MailKind::DeviceRevoked;
        AgentMade = MailKind::AgentMade;
        TokenRegenerated = MailKind::TokenRegenerated;
        AddressAsked = MailKind::AddressAsked;
        AddressChanged = MailKind::AddressChanged;
    }
}

impl SecurityChange {
    /// The change with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|change| change.row().name() == name)
    }
}

/// Mails the user about a change, unless one of its kind was mailed within a day.
pub async fn notify(tx: &Tx, user: UserId, change: SecurityChange) -> Result<()> {
    let name = change.row().name();
    if let Some(at) = store::put_security_notice(tx, user, name).await? {
        tx.enqueue(Job::SecurityNotice {
            user,
            change: name.to_owned(),
            at,
        });
    }
    Ok(())
}

/// Mails the address that an account has had before a change.
pub async fn notify_address(tx: &Tx, before: &Profile, change: SecurityChange) -> Result<()> {
    tx.enqueue(Job::AddressNotice {
        recipient: before.email.clone(),
        locale: before.device_locale.clone(),
        change: change.row().name().to_owned(),
        at: store::now(tx).await?,
    });
    Ok(())
}
