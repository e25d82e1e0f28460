//! Mails about changes that a thief might make, each kind at most once a day and user.

use blindpipe_protocol::catalogue;

use super::store;
use crate::{error::Result, ids::UserId, jobs::Job, work::Tx};

catalogue! {
    /// The changes: (name, subject of the mail, its first sentence, what to do if it was somebody
    /// else).
    pub enum SecurityChange: (&'static str, &'static str, &'static str, &'static str) {
        PasskeyAdded = (
            "passkey_added",
            "A new passkey",
            "Somebody has added a passkey to your account.",
            "delete the passkey, and set a new password: that ends every session."
        );
        PasswordChanged = (
            "password_changed",
            "A new password",
            "Somebody has set a new password for your account.",
            "set another one with a code that is mailed to you. Then look at your passkeys and agents."
        );
        AgentMade = (
            "agent_made",
            "A new agent",
            "Somebody has made an agent in your account.",
            "delete the agent, and set a new password: that ends every session."
        );
        TokenRegenerated = (
            "token_regenerated",
            "A new token of an agent",
            "Somebody has regenerated the token of one of your agents.",
            "revoke the token, and set a new password: that ends every session."
        );
    }
}

impl SecurityChange {
    /// The change with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|change| change.row().0 == name)
    }
}

/// Mails the user about a change, unless one of its kind was mailed within a day.
pub async fn notify(tx: &Tx, user: UserId, change: SecurityChange) -> Result<()> {
    if let Some(at) = store::put_security_notice(tx, user, change.row().0).await? {
        tx.enqueue(Job::SecurityNotice {
            user,
            change: change.row().0.to_owned(),
            at,
        });
    }
    Ok(())
}
